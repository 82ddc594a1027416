#!/usr/bin/env python3
"""Makes the parity cases of Qwen3-MoE, one a format its weights come in, as make_cases.py does those of gpt-oss.

    make_qwen3_moe.py [--out DIR] [CASE ...]
"""
import copy
import json
import math
import sys
from dataclasses import dataclass

import numpy as np
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

import make_cases
from make_cases import BOS, E2M1, E2M1_RMS, EOS, PAD, token_codes


@dataclass
class Spec:
    seed: int
    format: str             # bf16, fp8, fp8_row and nvfp4_packed (compressed-tensors), nvfp4 (ModelOpt)
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    top_k: int
    intermediate: int
    renormalise: bool = True
    theta: float = 1000000.0
    tied: bool = False
    modern_config: bool = False
    eps: float = 1e-6
    vocab: int = 448
    shards: int = 1


CASES = {
    "qwen3_moe_bf16": Spec(seed=35, format="bf16", hidden=64, layers=2, heads=4, kv_heads=2, head_dim=64, experts=8, top_k=3,
                           intermediate=48),
    "qwen3_moe_fp8": Spec(seed=32, format="fp8", hidden=160, layers=2, heads=2, kv_heads=1, head_dim=128, experts=6, top_k=2,
                          intermediate=192, renormalise=False, tied=True, eps=1e-5),
    "qwen3_moe_nvfp4": Spec(seed=33, format="nvfp4", hidden=128, layers=2, heads=4, kv_heads=1, head_dim=32, experts=6, top_k=2,
                            intermediate=64, theta=10000.0, modern_config=True),
    "qwen3_moe_nvfp4_packed": Spec(seed=34, format="nvfp4_packed", hidden=96, layers=3, heads=2, kv_heads=2, head_dim=64, experts=5,
                                   top_k=5, intermediate=144, theta=10000.0),
    "qwen3_moe_fp8_row": Spec(seed=37, format="fp8_row", hidden=144, layers=2, heads=4, kv_heads=2, head_dim=64, experts=6, top_k=2,
                              intermediate=160),
}


def config_of(spec):
    """config.json, with the keys of Qwen/Qwen3-30B-A3B."""
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": BOS, "decoder_sparse_step": 1, "eos_token_id": EOS, "head_dim": spec.head_dim, "hidden_act": "silu",
        "hidden_size": spec.hidden, "initializer_range": 0.02, "intermediate_size": 3 * spec.hidden,
        "max_position_embeddings": 40960, "max_window_layers": spec.layers, "mlp_only_layers": [],
        "moe_intermediate_size": spec.intermediate, "norm_topk_prob": spec.renormalise, "num_attention_heads": spec.heads,
        "num_experts": spec.experts, "num_experts_per_tok": spec.top_k, "num_hidden_layers": spec.layers,
        "num_key_value_heads": spec.kv_heads, "output_router_logits": False, "rms_norm_eps": spec.eps,
        "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": spec.tied, "use_cache": True,
        "use_sliding_window": False, "vocab_size": spec.vocab, "pad_token_id": PAD,
    }
    if spec.modern_config:
        config |= {"rope_parameters": {"rope_type": "default", "rope_theta": spec.theta}, "dtype": "bfloat16", "transformers_version": "5.23.0"}
    else:
        config |= {"rope_scaling": None, "rope_theta": spec.theta, "torch_dtype": "bfloat16", "transformers_version": "4.51.0"}
    gates = [f"model.layers.{i}.mlp.gate" for i in range(spec.layers)]
    if spec.format == "fp8":
        norms = [f"model.layers.{i}.{n}_layernorm" for i in range(spec.layers) for n in ("input", "post_attention")]
        config["quantization_config"] = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                                         "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", *norms, *gates]}
    elif spec.format == "fp8_row":   # as llm-compressor's FP8_DYNAMIC writes it
        eight = {"num_bits": 8, "type": "float", "symmetric": True}
        weights = eight | {"strategy": "channel", "dynamic": False}
        config["quantization_config"] = {
            "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                                          "input_activations": eight | {"strategy": "token", "dynamic": True}}},
            "ignore": ["lm_head", "re:.*mlp.gate$"]}
    elif spec.format == "nvfp4_packed":
        weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True, "dynamic": False}
        config["quantization_config"] = {
            "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
            "ignore": ["lm_head", "re:.*mlp.gate$"]}
    return config


def hf_quant_config(spec):
    return {"producer": {"name": "modelopt", "version": "0.33.0"},
            "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16,
                             "exclude_modules": ["lm_head", "model.layers.*.mlp.gate", "model.layers.0.self_attn*"]}}


# ---- weights as stored -------------------------------------------------------------------------------------

def fp8_blocks(weight, narrow):
    """E4M3 codes and a scale a tile of 128 x 128, float32 or bfloat16."""
    rows, cols = weight.shape
    scales = torch.empty((rows + 127) // 128, (cols + 127) // 128)
    codes = torch.empty(rows, cols, dtype=torch.float8_e4m3fn)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            tile = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            scale = weight[tile].abs().max() / 448
            scale = scale.to(torch.bfloat16).float() if narrow else scale
            scales[i, j] = scale
            codes[tile] = (weight[tile] / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scales.to(torch.bfloat16) if narrow else scales}


def fp8_rows(weight, narrow):
    """E4M3 codes and a scale a row, float32 or bfloat16."""
    scales = weight.abs().amax(1, keepdim=True) / 448
    scales = scales.to(torch.bfloat16) if narrow else scales
    return {"weight": (weight / scales.float()).clamp(-448, 448).to(torch.float8_e4m3fn), "weight_scale": scales}


def nvfp4_codes(rng, rows, width, gain, quiet_rows):
    """Random codes and scales whose values have the standard deviation gain / sqrt(width), and the one scale above."""
    codes = torch.from_numpy(rng.integers(0, 256, (rows, width // 2), dtype=np.uint8))
    scales = torch.from_numpy((32 * 2 ** rng.normal(0, 0.5, (rows, width // 16))).astype(np.float32))
    scales[:quiet_rows] /= 48
    scales = scales.clamp(2 ** -6, 448).to(torch.float8_e4m3fn)
    return codes, scales, np.float32(gain / math.sqrt(width) / E2M1_RMS / 36 * rng.uniform(0.7, 1.4))


def decode_module(parts):
    """A module's weight in float32 from its tensors."""
    if "weight_scale_inv" in parts:
        scales = parts["weight_scale_inv"].float()
        rows, cols = parts["weight"].shape
        wide = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
        return parts["weight"].float() * wide
    codes = parts.get("weight_packed", parts.get("weight"))
    if codes.dtype == torch.float8_e4m3fn:
        return codes.float() * parts["weight_scale"].float()
    if codes.dtype != torch.uint8:
        return codes.float()
    values = torch.stack((E2M1[(codes & 15).long()], E2M1[(codes >> 4).long()]), -1).flatten(-2)
    scales = parts["weight_scale"].float().repeat_interleave(16, 1)
    if "weight_global_scale" in parts:
        return values * (scales / parts["weight_global_scale"].float())
    return values * (scales * parts["weight_scale_2"].float())


def make_weights(spec, rng):
    hidden, q_width, kv_width = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    reserved = min(hidden // 4, 24)        # dimensions that carry the token's code; layers hardly write to them
    router_rows, router_norm = rng.normal(0, 1, (spec.experts, reserved)), rng.normal(1, 0.15, reserved)
    router_rows *= math.sqrt(reserved) / np.linalg.norm(router_rows, axis=1, keepdims=True)

    tensors = {}
    def bf16(name, array):
        tensors[name] = torch.from_numpy(np.asarray(array, dtype=np.float32)).to(torch.bfloat16).contiguous()
    def module(name, rows, width, gain, quiet=False, quantized=True):
        if quantized and spec.format.startswith("nvfp4"):
            codes, scales, scale = nvfp4_codes(rng, rows, width, gain, reserved if quiet else 0)
            if spec.format == "nvfp4":
                parts = {"weight": codes, "weight_scale": scales, "weight_scale_2": torch.tensor(scale), "input_scale": torch.tensor(0.01)}
            else:
                parts = {"weight_packed": codes, "weight_scale": scales, "weight_global_scale": torch.tensor([1 / scale], dtype=torch.float32)}
            tensors.update({f"{name}.{k}": v for k, v in parts.items()})
            return
        weight = rng.normal(0, gain / math.sqrt(width), (rows, width))
        if quiet:
            weight[:reserved] *= 0.02
        bf16(name + ".weight", weight)
        if quantized and spec.format == "fp8_row":
            tensors.update({f"{name}.{k}": v for k, v in fp8_rows(tensors[name + ".weight"].float(), narrow="down" not in name).items()})
        if quantized and spec.format == "fp8":
            tensors.update({f"{name}.{k}": v for k, v in fp8_blocks(tensors[name + ".weight"].float(), narrow="down" not in name).items()})

    embed = rng.normal(0, 1, (spec.vocab, hidden))
    embed[:, :reserved] = token_codes(rng, spec, router_rows * router_norm, reserved)
    bf16("model.embed_tokens.weight", embed)
    for i in range(spec.layers):
        layer = f"model.layers.{i}."
        bf16(layer + "input_layernorm.weight", rng.normal(1, 0.15, hidden))
        attention = not (spec.format == "nvfp4" and i == 0)
        module(layer + "self_attn.q_proj", q_width, hidden, 1.3, quantized=attention)
        module(layer + "self_attn.k_proj", kv_width, hidden, 1.3, quantized=attention)
        module(layer + "self_attn.v_proj", kv_width, hidden, 1.0, quantized=attention)
        module(layer + "self_attn.o_proj", hidden, q_width, 1.2, quiet=True, quantized=attention)
        bf16(layer + "self_attn.q_norm.weight", rng.normal(1.2, 0.3, spec.head_dim))
        bf16(layer + "self_attn.k_norm.weight", rng.normal(1.2, 0.3, spec.head_dim))
        bf16(layer + "post_attention_layernorm.weight", np.concatenate((router_norm, rng.normal(1, 0.15, hidden - reserved))))
        router = rng.normal(0, 0.004, (spec.experts, hidden))
        router[:, :reserved] = rng.permutation(router_rows) * (3 / math.sqrt(reserved))
        bf16(layer + "mlp.gate.weight", router)
        for e in range(spec.experts):
            expert = f"{layer}mlp.experts.{e}."
            module(expert + "gate_proj", spec.intermediate, hidden, 2.0)
            module(expert + "up_proj", spec.intermediate, hidden, 1.6)
            module(expert + "down_proj", hidden, spec.intermediate, 0.8, quiet=True)
    bf16("model.norm.weight", rng.normal(0, 2.2 / math.sqrt(hidden), hidden) if spec.tied else rng.normal(1, 0.15, hidden))
    if not spec.tied:
        bf16("lm_head.weight", rng.normal(0, 2.2 / math.sqrt(hidden), (spec.vocab, hidden)))
    return tensors


def save_checkpoint(spec, tensors, folder):
    make_cases.save_files(config_of(spec), tensors, folder, spec.shards)
    if spec.format == "nvfp4":
        (folder / "hf_quant_config.json").write_text(json.dumps(hf_quant_config(spec), indent=2) + "\n")


# ---- the reference -----------------------------------------------------------------------------------------

def decoded(tensors):
    """name -> float32 tensor, of modules' weights and vectors."""
    modules = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        modules.setdefault(module, {})[part] = tensor
    state = {}
    for module, parts in modules.items():
        for part in parts:
            if part not in ("weight", "weight_packed"):
                continue
            state[module + ".weight"] = decode_module(parts)
    return state


def load_reference(config_json, tensors, dtype=torch.float32):
    config = Qwen3MoeConfig(**{k: copy.deepcopy(v) for k, v in config_json.items() if k != "quantization_config"})
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = Qwen3MoeForCausalLM(config)
    state = decoded(tensors)
    for i in range(config.num_hidden_layers):   # transformers 5 keeps a layer's experts in two tensors
        prefix = f"model.layers.{i}.mlp.experts."
        of = lambda e, part: state.pop(f"{prefix}{e}.{part}_proj.weight")
        experts = [(of(e, "gate"), of(e, "up"), of(e, "down")) for e in range(config.num_experts)]
        state[prefix + "gate_up_proj"] = torch.stack([torch.cat((g, u)) for g, u, _ in experts])
        state[prefix + "down_proj"] = torch.stack([d for _, _, d in experts])
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model.to(dtype).eval()


def router_modules(model):
    return [layer.mlp.gate for layer in model.model.layers]


def mistakes(spec):
    """Wrong computations that this case must tell from the right one: name -> (config change, weight change)."""
    ones = lambda suffix: lambda n, t: torch.ones_like(t) if n.endswith(suffix) else t
    theta = {"rope_parameters": {"rope_type": "default", "rope_theta": spec.theta * 1.1}} if spec.modern_config else {"rope_theta": spec.theta * 1.1}
    found = {"no weight of q's norm": ({}, ones("q_norm.weight")), "no weight of k's norm": ({}, ones("k_norm.weight")),
             "other theta": (theta, None)}
    if spec.top_k < spec.experts:
        found["other sum of weights"] = ({"norm_topk_prob": not spec.renormalise}, None)
    return found


if __name__ == "__main__":
    sys.exit(make_cases.make_family(sys.modules[__name__]))
