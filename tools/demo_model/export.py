"""Write the Hugging Face checkpoint: python export.py MODEL_PT TOKENIZER_FOLDER OUT_FOLDER"""
import argparse
import json
import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer

from model import Config
from mxfp4 import pack, quantize, unpack


def checkpoint_tensors(weights: dict, config: Config) -> dict:
    """Tensors in gpt-oss's names; the router's and the experts' own names differ from the training code's."""
    out = {"model.embed_tokens.weight": weights["embed_tokens.weight"]}
    for number in range(config.layers):
        ours, theirs = f"layers.{number}.", f"model.layers.{number}."
        for name in ("input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.sinks", "mlp.router.weight",
                     "mlp.router.bias") + tuple(f"self_attn.{which}_proj.{part}" for which in "qkvo" for part in ("weight", "bias")):
            out[theirs + name] = weights[ours + name]
        for name in ("gate_up", "down"):
            weight = weights[f"{ours}mlp.{name}"]
            blocks, scales = pack(weight)
            assert torch.equal(unpack(blocks, scales), quantize(weight))
            out[f"{theirs}mlp.experts.{name}_proj_blocks"] = blocks
            out[f"{theirs}mlp.experts.{name}_proj_scales"] = scales
            out[f"{theirs}mlp.experts.{name}_proj_bias"] = weights[f"{ours}mlp.{name}_bias"]
    out["model.norm.weight"] = weights["norm.weight"]
    if not config.tie_embeddings:
        out["lm_head.weight"] = weights["lm_head.weight"]
    return {name: (tensor if tensor.dtype == torch.uint8 else tensor.bfloat16()).contiguous() for name, tensor in out.items()}


def write_safetensors(path: Path, tensors: dict):
    """Sizes that are no multiple of 8 bytes (the sinks) go last, so that everything else begins at one."""
    order = sorted(tensors, key=lambda name: tensors[name].nbytes % 8 != 0)
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name in order:
        tensor = tensors[name]
        dtype = "U8" if tensor.dtype == torch.uint8 else "BF16"
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(tensors[name].view(torch.uint8).numpy().tobytes())


def model_config(config: Config, ids: dict) -> dict:
    return {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "bos_token_id": ids["<|startoftext|>"],
        "eos_token_id": ids["<|return|>"],
        "experts_per_token": config.experts_per_token,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initial_context_length": config.rope_original_context,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "layer_types": ["full_attention" if number % 2 else "sliding_attention" for number in range(config.layers)],
        "max_position_embeddings": config.context,
        "model_type": "gpt_oss",
        "num_attention_heads": config.heads,
        "num_experts_per_tok": config.experts_per_token,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
        "num_local_experts": config.experts,
        "output_router_logits": False,
        "pad_token_id": ids["<|endoftext|>"],
        "quantization_config": {
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
            "quant_method": "mxfp4",
        },
        "rms_norm_eps": config.norm_epsilon,
        "rope_scaling": {
            "beta_fast": config.rope_beta_fast,
            "beta_slow": config.rope_beta_slow,
            "factor": config.rope_factor,
            "original_max_position_embeddings": config.rope_original_context,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": int(config.rope_theta),
        "router_aux_loss_coef": 0.9,
        "sliding_window": config.sliding_window,
        "swiglu_limit": config.swiglu_limit,
        "tie_word_embeddings": config.tie_embeddings,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.55.0",
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    saved = torch.load(arguments.model, map_location="cpu")
    config = Config(**saved["config"])
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer / "tokenizer.json"))
    ids = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()}

    arguments.out.mkdir(parents=True, exist_ok=True)
    tensors = checkpoint_tensors(saved["weights"], config)
    write_safetensors(arguments.out / "model.safetensors", tensors)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copyfile(arguments.tokenizer / name, arguments.out / name)
    shutil.copyfile(Path(__file__).parent / "chat_template.jinja", arguments.out / "chat_template.jinja")
    generation = {
        "bos_token_id": ids["<|startoftext|>"],
        "do_sample": True,
        # The model sometimes ends an answer as a chat template would, so that stops it too.
        "eos_token_id": [ids["<|return|>"], ids["<|endoftext|>"], ids["<|call|>"], ids["<|end|>"]],
        "pad_token_id": ids["<|endoftext|>"],
        "temperature": 0.7,
        "transformers_version": "4.55.0",
    }
    for name, content in (("config.json", model_config(config, ids)), ("generation_config.json", generation)):
        (arguments.out / name).write_text(json.dumps(content, indent=2) + "\n")
    size = sum(path.stat().st_size for path in arguments.out.iterdir())
    print(f"{len(tensors)} tensors, folder of {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
