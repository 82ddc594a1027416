#!/usr/bin/env python3
"""Makes the parity cases of Qwen3-Next and Qwen3.5, as make_cases.py does those of gpt-oss.

    make_qwen3_next.py [--out DIR] [CASE ...]
"""
import copy
import math
import sys
from dataclasses import dataclass

import numpy as np
import torch
from transformers import (Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3NextConfig,
                          Qwen3NextForCausalLM)

import make_cases
from make_cases import BOS, EOS, PAD, token_codes
from make_qwen3_moe import decoded, fp8_blocks


@dataclass
class Spec:
    seed: int
    newer: bool             # Qwen3.5: text_config, projections apart; else Qwen3-Next
    format: str             # bf16, fp8
    hidden: int
    layers: str             # "l" a delta rule, "f" attention
    heads: int
    kv_heads: int
    head_dim: int
    rotated: float
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    experts: int            # 0: dense
    top_k: int
    intermediate: int
    shared: int
    taps: int = 4
    renormalise: bool = True
    theta: float = 10000000.0
    tied: bool = False
    eps: float = 1e-6
    vocab: int = 448
    shards: int = 1


CASES = {
    "qwen3_next_bf16": Spec(seed=51, newer=False, format="bf16", hidden=64, layers="lllf", heads=4, kv_heads=2, head_dim=64, rotated=0.25,
                            key_heads=2, value_heads=4, key_dim=16, value_dim=24, experts=8, top_k=3, intermediate=48, shared=40),
    "qwen3_5_moe_stacked": Spec(seed=52, newer=True, format="bf16", hidden=96, layers="lf", heads=2, kv_heads=1, head_dim=256, rotated=0.25,
                                key_heads=2, value_heads=6, key_dim=32, value_dim=32, experts=6, top_k=2, intermediate=32, shared=32,
                                tied=True),
    "qwen3_5_moe_fp8": Spec(seed=53, newer=True, format="fp8", hidden=160, layers="llf", heads=4, kv_heads=1, head_dim=32, rotated=0.5,
                            key_heads=1, value_heads=2, key_dim=64, value_dim=96, experts=5, top_k=2, intermediate=64, shared=64,
                            taps=3, theta=10000.0, shards=2),
    "qwen3_5_dense": Spec(seed=54, newer=True, format="bf16", hidden=96, layers="llfl", heads=3, kv_heads=1, head_dim=64, rotated=0.25,
                          key_heads=2, value_heads=4, key_dim=24, value_dim=40, experts=0, top_k=0, intermediate=112, shared=0),
}


def text_config_of(spec):
    kinds = {"l": "linear_attention", "f": "full_attention"}
    fields = {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": BOS, "eos_token_id": EOS, "head_dim": spec.head_dim,
        "hidden_act": "silu", "hidden_size": spec.hidden, "initializer_range": 0.02, "layer_types": [kinds[c] for c in spec.layers],
        "linear_conv_kernel_dim": spec.taps, "linear_key_head_dim": spec.key_dim, "linear_num_key_heads": spec.key_heads,
        "linear_num_value_heads": spec.value_heads, "linear_value_head_dim": spec.value_dim, "max_position_embeddings": 262144,
        "moe_intermediate_size": spec.intermediate, "num_attention_heads": spec.heads, "num_experts": spec.experts,
        "num_experts_per_tok": spec.top_k, "num_hidden_layers": len(spec.layers), "num_key_value_heads": spec.kv_heads,
        "pad_token_id": PAD, "rms_norm_eps": spec.eps, "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": spec.shared, "tie_word_embeddings": spec.tied, "use_cache": True, "vocab_size": spec.vocab,
    }
    if spec.experts == 0:
        fields = {name: value for name, value in fields.items() if "expert" not in name and not name.startswith(("moe_", "router_"))}
        fields["intermediate_size"] = spec.intermediate
    return fields


def config_of(spec):
    """config.json, with the keys of Qwen/Qwen3-Next-80B-A3B-Instruct, Qwen/Qwen3.5-35B-A3B or Qwen/Qwen3.5-27B."""
    text = text_config_of(spec)
    if not spec.newer:
        return text | {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "decoder_sparse_step": 1,
                       "full_attention_interval": 4, "intermediate_size": 3 * spec.hidden, "mlp_only_layers": [],
                       "norm_topk_prob": spec.renormalise, "partial_rotary_factor": spec.rotated, "rope_scaling": None,
                       "rope_theta": spec.theta, "torch_dtype": "bfloat16", "transformers_version": "4.57.0"}
    pairs = int(spec.head_dim * spec.rotated) // 2
    sections = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    kind = "qwen3_5_moe" if spec.experts else "qwen3_5"
    text |= {"model_type": f"{kind}_text", "attn_output_gate": True, "dtype": "bfloat16", "full_attention_interval": 4,
             "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
             "rope_parameters": {"rope_type": "default", "rope_theta": spec.theta, "partial_rotary_factor": spec.rotated,
                                 "mrope_interleaved": True, "mrope_section": sections}}
    config = {"architectures": [f"Qwen3_5{'Moe' if spec.experts else ''}ForConditionalGeneration"], "model_type": kind, "image_token_id": 402,
              "text_config": text, "tie_word_embeddings": spec.tied, "transformers_version": "5.23.0",
              "vision_config": {"model_type": kind, "depth": 1, "hidden_size": 16}}
    if spec.format == "fp8":
        kept = ["lm_head", "model.visual", "mtp.fc"]
        kept += [f"model.language_model.layers.{i}.{n}" for i in range(len(spec.layers))
                 for n in ("mlp.gate", "mlp.shared_expert_gate", "linear_attn.conv1d", "linear_attn.in_proj_a", "linear_attn.in_proj_b")]
        config["quantization_config"] = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                                         "weight_block_size": [128, 128], "modules_to_not_convert": kept}
    return config


# ---- weights as stored -------------------------------------------------------------------------------------

def make_weights(spec, rng):
    hidden, q_width, kv_width = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    keys, values = spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim
    channels = 2 * keys + values
    reserved = min(hidden // 4, 24)        # dimensions that carry the token's code; layers hardly write to them
    router_rows, router_norm = rng.normal(0, 1, (spec.experts, reserved)), rng.normal(1, 0.15, reserved)
    if spec.experts:
        router_rows *= math.sqrt(reserved) / np.linalg.norm(router_rows, axis=1, keepdims=True)
    trunk = "model.language_model." if spec.newer else "model."

    tensors = {}
    def bf16(name, array):
        tensors[name] = torch.from_numpy(np.asarray(array, dtype=np.float32)).to(torch.bfloat16).contiguous()
    def f32(name, array):
        tensors[name] = torch.from_numpy(np.asarray(array, dtype=np.float32))
    def weight(rows, width, gain, quiet=False):
        made = rng.normal(0, gain / math.sqrt(width), (rows, width))
        if quiet:
            made[:reserved] *= 0.02
        return made
    def module(name, rows, width, gain, quiet=False, quantized=True):
        bf16(name + ".weight", weight(rows, width, gain, quiet))
        if quantized and spec.format == "fp8":
            tensors.update({f"{name}.{k}": v for k, v in fp8_blocks(tensors[name + ".weight"].float(), narrow="down" in name).items()})

    embed = rng.normal(0, 1, (spec.vocab, hidden))
    if spec.experts:
        embed[:, :reserved] = token_codes(rng, spec, router_rows * router_norm, reserved)
    bf16(trunk + "embed_tokens.weight", embed)
    for i, kind in enumerate(spec.layers):
        layer = f"{trunk}layers.{i}."
        bf16(layer + "input_layernorm.weight", rng.normal(0, 0.15, hidden))
        if kind == "f":
            module(layer + "self_attn.q_proj", 2 * q_width, hidden, 1.3)
            module(layer + "self_attn.k_proj", kv_width, hidden, 1.3)
            module(layer + "self_attn.v_proj", kv_width, hidden, 1.0)
            module(layer + "self_attn.o_proj", hidden, q_width, 2.0, quiet=True)
            bf16(layer + "self_attn.q_norm.weight", rng.normal(0.2, 0.3, spec.head_dim))
            bf16(layer + "self_attn.k_norm.weight", rng.normal(0.2, 0.3, spec.head_dim))
        else:
            mixer = layer + "linear_attn."
            if spec.newer:
                module(mixer + "in_proj_qkv", channels, hidden, 1.0)
                module(mixer + "in_proj_z", values, hidden, 1.0)
                module(mixer + "in_proj_b", spec.value_heads, hidden, 1.5, quantized=False)
                module(mixer + "in_proj_a", spec.value_heads, hidden, 1.0, quantized=False)
            else:
                module(mixer + "in_proj_qkvz", channels + values, hidden, 1.0)
                module(mixer + "in_proj_ba", 2 * spec.value_heads, hidden, 1.2, quantized=False)
            bf16(mixer + "conv1d.weight", rng.normal(0, 0.6, (channels, 1, spec.taps)))
            wide = f32 if spec.newer else bf16
            wide(mixer + "A_log", np.log(rng.uniform(0.02, 2, spec.value_heads)))
            bf16(mixer + "dt_bias", rng.normal(-2.5, 1, spec.value_heads))
            wide(mixer + "norm.weight", rng.normal(1, 0.2, spec.value_dim))
            module(mixer + "out_proj", hidden, values, 2.0, quiet=True)
        bf16(layer + "post_attention_layernorm.weight", np.concatenate((router_norm - 1, rng.normal(0, 0.15, hidden - reserved))))
        if spec.experts == 0:
            module(layer + "mlp.gate_proj", spec.intermediate, hidden, 2.0)
            module(layer + "mlp.up_proj", spec.intermediate, hidden, 1.6)
            module(layer + "mlp.down_proj", hidden, spec.intermediate, 0.8, quiet=True)
            continue
        router = rng.normal(0, 0.004, (spec.experts, hidden))
        router[:, :reserved] = rng.permutation(router_rows) * (3 / math.sqrt(reserved))
        bf16(layer + "mlp.gate.weight", router)
        width = spec.intermediate
        if spec.newer and spec.format == "bf16":
            stack = lambda *args, **kwargs: np.stack([weight(*args, **kwargs) for _ in range(spec.experts)])
            bf16(layer + "mlp.experts.gate_up_proj", stack(2 * width, hidden, 1.8))
            bf16(layer + "mlp.experts.down_proj", stack(hidden, width, 0.8, quiet=True))
        else:
            for e in range(spec.experts):
                expert = f"{layer}mlp.experts.{e}."
                module(expert + "gate_proj", width, hidden, 2.0)
                module(expert + "up_proj", width, hidden, 1.6)
                module(expert + "down_proj", hidden, width, 0.8, quiet=True)
        module(layer + "mlp.shared_expert.gate_proj", spec.shared, hidden, 2.0)
        module(layer + "mlp.shared_expert.up_proj", spec.shared, hidden, 1.6)
        module(layer + "mlp.shared_expert.down_proj", hidden, spec.shared, 0.8, quiet=True)
        module(layer + "mlp.shared_expert_gate", 1, hidden, 1.5, quantized=False)
    last = rng.normal(0, 3.6 / math.sqrt(hidden), hidden) if spec.tied else rng.normal(1, 0.15, hidden)
    bf16(trunk + "norm.weight", last - 1)
    if not spec.tied:
        bf16("lm_head.weight", rng.normal(0, 4.0 / math.sqrt(hidden), (spec.vocab, hidden)))
    if spec.newer:   # what is left alone
        bf16("mtp.fc.weight", rng.normal(0, 1, (hidden, 2 * hidden)))
        bf16("model.visual.patch_embed.proj.bias", rng.normal(0, 1, 16))
    return tensors


def save_checkpoint(spec, tensors, folder):
    make_cases.save_files(config_of(spec), tensors, folder, spec.shards)


# ---- the reference -----------------------------------------------------------------------------------------

def load_reference(config_json, tensors, dtype=torch.float32):
    """Changes of the text's fields may stand in "changed"."""
    newer = "text_config" in config_json
    dense = config_json["model_type"] == "qwen3_5"
    fields = copy.deepcopy(config_json["text_config"] if newer else config_json) | config_json.get("changed", {})
    fields = {k: v for k, v in fields.items() if k not in ("quantization_config", "changed")}
    config = (Qwen3_5TextConfig if dense else Qwen3_5MoeTextConfig if newer else Qwen3NextConfig)(**fields)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = (Qwen3_5ForCausalLM if dense else Qwen3_5MoeForCausalLM if newer else Qwen3NextForCausalLM)(config)
    kept = {n: t for n, t in tensors.items() if not n.startswith(("mtp.", "model.visual."))}
    state = decoded(kept) | {n: t.float() for n, t in kept.items() if n.rpartition(".")[2] in ("A_log", "dt_bias", "gate_up_proj", "down_proj")}
    state = {n.replace("model.language_model.", "model."): t for n, t in state.items()}
    for i in range(0 if dense else config.num_hidden_layers):   # transformers 5 keeps a layer's experts in two tensors
        prefix = f"model.layers.{i}.mlp.experts."
        if prefix + "gate_up_proj" in state:
            continue
        of = lambda e, part: state.pop(f"{prefix}{e}.{part}_proj.weight")
        experts = [(of(e, "gate"), of(e, "up"), of(e, "down")) for e in range(config.num_experts)]
        state[prefix + "gate_up_proj"] = torch.stack([torch.cat((g, u)) for g, u, _ in experts])
        state[prefix + "down_proj"] = torch.stack([d for _, _, d in experts])
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model.to(dtype).eval()


def router_modules(model):
    return [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]


def mistakes(spec):
    """Wrong computations that this case must tell from the right one: name -> (config change, weight change)."""
    like = lambda suffix, make: lambda n, t: make(t) if n.endswith(suffix) else t
    ones = lambda suffix: like(suffix, torch.ones_like)
    zeros = lambda suffix: like(suffix, torch.zeros_like)
    def rope(theta, rotated):
        if not spec.newer:
            return {"changed": {"rope_theta": theta, "partial_rotary_factor": rotated}}
        return {"changed": {"rope_parameters": {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": rotated}}}
    def without_gates(n, t):
        return t if not n.endswith("q_proj.weight") else t.float().unflatten(0, (spec.heads, 2, -1)).mul(
            torch.tensor([1.0, 0.0])[None, :, None, None]).flatten(0, 2).to(t.dtype)
    # Twice the theta: a few pairs turn, and slowly.
    found = {"no weight of q's norm": ({}, zeros("q_norm.weight")), "whole heads rotated": (rope(spec.theta, 1.0), None),
             "other theta": (rope(spec.theta * 2, spec.rotated), None), "output gates of one half": ({}, without_gates),
             "no weight of the delta rule's norm": ({}, ones("linear_attn.norm.weight")), "taps reversed": ({}, like("conv1d.weight", lambda t: t.flip(-1))),
             "no bias of what is forgotten": ({}, zeros("dt_bias")), "one rate for all heads": ({}, zeros("A_log")),
             "no shared expert": ({}, zeros("shared_expert.down_proj.weight")), "half of the shared expert": ({}, zeros("shared_expert_gate.weight"))}
    if spec.experts == 0:
        del found["no shared expert"], found["half of the shared expert"]
        found["up without its gate"] = ({}, zeros("mlp.gate_proj.weight"))
    return found


if __name__ == "__main__":
    sys.exit(make_cases.make_family(sys.modules[__name__]))
