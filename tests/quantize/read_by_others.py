"""Reads quantized checkpoints with transformers and compressed-tensors; run by others_read_test.py with a Python that has them.

    read_by_others.py logits FOLDER OTHER     the largest difference of their logits, as transformers loads both in bfloat16
    read_by_others.py weights FOLDER OUT      OUT: every module's weight in float32 as compressed-tensors decompresses it
"""
import json
import sys
from pathlib import Path


def logits(folder):
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    ids = (torch.arange(24) * 5 % model.config.vocab_size)[None]
    with torch.no_grad():
        return model(ids).logits.float()


def weights(folder):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from safetensors.torch import load_file
    config = QuantizationConfig.model_validate(json.loads((folder / "config.json").read_text())["quantization_config"])
    [scheme] = config.config_groups.values()
    compressor = BaseCompressor.get_value_from_registry(scheme.format or config.format)
    modules = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            module, _, part = name.rpartition(".")
            modules.setdefault(module, {})[part] = tensor
    return {name: compressor.decompress(parts, scheme)["weight"].float().contiguous()
            for name, parts in modules.items() if "weight_scale" in parts}


def main():
    what, folder, other = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if what == "logits":
        print((logits(folder) - logits(other)).abs().max().item())
        return
    from safetensors.torch import save_file
    save_file(weights(folder), other)


if __name__ == "__main__":
    main()
