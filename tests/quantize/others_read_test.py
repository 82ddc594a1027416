"""What `nibble quantize` writes, read by transformers and compressed-tensors. They bring gigabytes, so they are not among the
tests' packages: NIBBLE_READERS_PYTHON names a Python that has them (torch, transformers, compressed-tensors, accelerate)."""
import json
import os
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from checkpoints import config_of, decoded, random_weights, read_tensors, write_tensors, write_wide_demo
from nibble_program import PARITY, run

READERS = os.environ.get("NIBBLE_READERS_PYTHON")
if not READERS:
    pytest.skip("NIBBLE_READERS_PYTHON names no Python with transformers and compressed-tensors", allow_module_level=True)
SCRIPT = Path(__file__).with_name("read_by_others.py")
HIDDEN, WIDTH, VOCABULARY = 128, 256, 96
CONFIG = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
          "vocab_size": VOCABULARY, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
          "torch_dtype": "bfloat16"}
DENSE = CONFIG | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "intermediate_size": WIDTH}
EXPERTS = CONFIG | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "intermediate_size": WIDTH,
                    "moe_intermediate_size": WIDTH, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True,
                    "decoder_sparse_step": 1, "mlp_only_layers": []}


def write_qwen(folder, config):
    folder.mkdir()
    shapes = {"model.embed_tokens": (VOCABULARY, HIDDEN), "lm_head": (VOCABULARY, HIDDEN)}
    ones = ["model.norm"]
    for layer in range(config["num_hidden_layers"]):
        of = f"model.layers.{layer}."
        shapes |= {of + "self_attn.q_proj": (128, HIDDEN), of + "self_attn.k_proj": (64, HIDDEN),
                   of + "self_attn.v_proj": (64, HIDDEN), of + "self_attn.o_proj": (HIDDEN, 128)}
        ones += [of + "input_layernorm", of + "post_attention_layernorm", of + "self_attn.q_norm", of + "self_attn.k_norm"]
        places = [of + "mlp."] if "num_experts" not in config else [f"{of}mlp.experts.{i}." for i in range(config["num_experts"])]
        if "num_experts" in config:
            shapes[of + "mlp.gate"] = (config["num_experts"], HIDDEN)
        for place in places:
            shapes |= {place + "gate_proj": (WIDTH, HIDDEN), place + "up_proj": (WIDTH, HIDDEN), place + "down_proj": (HIDDEN, WIDTH)}
    tensors = {f"{name}.weight": random_weights(i, shape, 0.08) for i, (name, shape) in enumerate(shapes.items())}
    for name in ones:
        size = 32 if name.endswith(("q_norm", "k_norm")) else HIDDEN
        tensors[name + ".weight"] = np.ones(size, ml_dtypes.bfloat16)
    write_tensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


def write_decoded(folder, tensors, quantized, config):
    """The source again, with the weights that numpy decodes from the quantized checkpoint."""
    folder.mkdir()
    found, quantization = read_tensors(quantized), config_of(quantized)["quantization_config"]
    changed = 0
    for name in list(tensors):
        module = name.removesuffix(".weight")
        if f"{module}.weight_packed" in found or f"{module}.weight_scale" in found or f"{module}.weight_scale_inv" in found:
            tensors[name] = decoded(found, module, quantization).astype(ml_dtypes.bfloat16)
            changed += 1
    assert changed > 0
    write_tensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config))


def others(what, folder, other):
    done = subprocess.run([READERS, SCRIPT, what, folder, other], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def quantize(src, out, *arguments):
    code, _, err = run("quantize", src, out, *arguments)
    assert code == 0, err


@pytest.mark.parametrize("format", ["mxfp4", "nvfp4", "fp8_block", "mxfp8"])
def test_transformers_computes_with_the_weights_that_numpy_decodes(tmp_path, format):
    tensors = write_qwen(tmp_path / "src", DENSE)
    quantize(tmp_path / "src", tmp_path / "out", "--format", format, "--modules", "linear")
    write_decoded(tmp_path / "decoded", tensors, tmp_path / "out", DENSE)
    assert float(others("logits", tmp_path / "out", tmp_path / "decoded")) == 0
    assert float(others("logits", tmp_path / "out", tmp_path / "src")) > 0, "quantized weights are others"


@pytest.mark.parametrize("format", ["mxfp4", "fp8_block"])
def test_transformers_computes_with_the_experts_that_numpy_decodes(tmp_path, format):
    tensors = write_qwen(tmp_path / "src", EXPERTS)
    quantize(tmp_path / "src", tmp_path / "out", "--format", format)
    write_decoded(tmp_path / "decoded", tensors, tmp_path / "out", EXPERTS)
    assert float(others("logits", tmp_path / "out", tmp_path / "decoded")) == 0


def test_beside_experts_transformers_computes_with_the_attention_that_numpy_decodes(tmp_path):
    """Its loader of fused experts does not know mxfp8's scales; nvfp4's it expects there wherever attention has them."""
    tensors = write_qwen(tmp_path / "src", EXPERTS)
    quantize(tmp_path / "src", tmp_path / "out", "--format", "mxfp8", "--modules", "linear", "--exclude", "*.experts.*")
    write_decoded(tmp_path / "decoded", tensors, tmp_path / "out", EXPERTS)
    assert float(others("logits", tmp_path / "out", tmp_path / "decoded")) == 0


@pytest.mark.parametrize("format", ["mxfp4", "nvfp4", "mxfp8"])
def test_compressed_tensors_decompresses_experts_to_what_numpy_decodes(tmp_path, format):
    from safetensors.numpy import load_file
    write_qwen(tmp_path / "src", EXPERTS)
    quantize(tmp_path / "src", tmp_path / "out", "--format", format, "--modules", "linear")
    others("weights", tmp_path / "out", tmp_path / "weights.safetensors")
    found, quantization = read_tensors(tmp_path / "out"), config_of(tmp_path / "out")["quantization_config"]
    theirs = load_file(tmp_path / "weights.safetensors")
    assert len(theirs) == 2 * (4 + 3 * 4)
    for module, weight in theirs.items():
        mine = decoded(found, module, quantization).astype(ml_dtypes.bfloat16).astype(np.float32)
        assert (weight == mine).all(), module


def test_compressed_tensors_decompresses_channels_of_fp8_to_what_is_read_here(tmp_path):
    """The case of parity; a scale in bfloat16 rounds its decompressed values to that, where nibble multiplies sums by it."""
    from safetensors.numpy import load_file
    folder = PARITY / "qwen3_moe_fp8_row"
    others("weights", folder, tmp_path / "weights.safetensors")
    found, quantization = read_tensors(folder), config_of(folder)["quantization_config"]
    theirs = load_file(tmp_path / "weights.safetensors")
    assert len(theirs) == 2 * (4 + 3 * 6)
    for module, weight in theirs.items():
        mine = decoded(found, module, quantization)
        if found[module + ".weight_scale"].dtype == ml_dtypes.bfloat16:
            mine = mine.astype(ml_dtypes.bfloat16).astype(np.float32)
        assert (weight == mine).all(), module


def test_transformers_reads_gpt_oss_experts_as_the_source_that_they_hold_exactly(tmp_path):
    write_wide_demo(tmp_path / "src")
    quantize(tmp_path / "src", tmp_path / "out", "--format", "mxfp4")
    assert float(others("logits", tmp_path / "out", tmp_path / "src")) == 0
