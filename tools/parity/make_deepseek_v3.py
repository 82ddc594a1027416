#!/usr/bin/env python3
"""Makes the parity cases of DeepSeek-V3 and its relatives, as make_cases.py does those of gpt-oss.

    make_deepseek_v3.py [--out DIR] [CASE ...]
"""
import copy
import math
import sys
from dataclasses import dataclass

import numpy as np
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, Glm4MoeLiteConfig, Glm4MoeLiteForCausalLM

import make_cases
from make_cases import BOS, EOS, PAD
from make_qwen3_moe import decoded, fp8_blocks

MIN_ROUTER_MARGIN = 0.02   # of what experts are chosen by, which is a sigmoid's


@dataclass
class Spec:
    seed: int
    format: str             # bf16, fp8
    hidden: int
    layers: int
    dense_layers: int
    heads: int
    query_rank: int         # 0: queries in one projection
    rank: int
    plain: int
    rotated: int
    value: int
    experts: int
    top_k: int
    intermediate: int
    shared: int
    groups: int = 1
    top_groups: int = 1
    renormalise: bool = True
    scale: float = 2.5
    glm: bool = False
    yarn: dict | None = None
    theta: float = 10000.0
    eps: float = 1e-6
    drafts: int = 0         # layers behind the last
    vocab: int = 448
    shards: int = 1


YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64, "type": "yarn"}
CASES = {
    "deepseek_v3_bf16": Spec(seed=51, format="bf16", hidden=64, layers=3, dense_layers=1, heads=4, query_rank=48, rank=32, plain=24,
                             rotated=16, value=32, experts=8, top_k=3, intermediate=32, shared=1, groups=4, top_groups=2, yarn=YARN,
                             drafts=1),
    "deepseek_v3_fp8": Spec(seed=52, format="fp8", hidden=160, layers=2, dense_layers=1, heads=2, query_rank=0, rank=144, plain=96,
                            rotated=32, value=64, experts=6, top_k=2, intermediate=48, shared=2, renormalise=False, scale=1.5,
                            yarn=YARN | {"factor": 32, "beta_fast": 1, "mscale": 0.707}),
    "glm4_moe_lite": Spec(seed=53, format="bf16", hidden=96, layers=2, dense_layers=1, heads=3, query_rank=32, rank=48, plain=48,
                          rotated=16, value=64, experts=5, top_k=2, intermediate=40, shared=1, scale=1.8, glm=True, eps=1e-5),
}


def config_of(spec):
    """config.json, with the keys of deepseek-ai/DeepSeek-V3, or those of GLM-4.7-Flash as transformers 5 writes them."""
    config = {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": BOS, "eos_token_id": EOS, "hidden_act": "silu",
        "hidden_size": spec.hidden, "initializer_range": 0.02, "intermediate_size": 2 * spec.hidden, "kv_lora_rank": spec.rank,
        "max_position_embeddings": 4096, "moe_intermediate_size": spec.intermediate, "n_group": spec.groups,
        "n_routed_experts": spec.experts, "n_shared_experts": spec.shared, "norm_topk_prob": spec.renormalise,
        "num_attention_heads": spec.heads, "num_experts_per_tok": spec.top_k, "num_hidden_layers": spec.layers,
        "num_key_value_heads": spec.heads, "num_nextn_predict_layers": spec.drafts,
        "q_lora_rank": spec.query_rank or None, "qk_nope_head_dim": spec.plain, "qk_rope_head_dim": spec.rotated,
        "rms_norm_eps": spec.eps, "routed_scaling_factor": spec.scale, "tie_word_embeddings": False, "topk_group": spec.top_groups,
        "topk_method": "noaux_tc", "use_cache": True, "v_head_dim": spec.value, "vocab_size": spec.vocab, "pad_token_id": PAD,
    }
    if spec.glm:
        return config | {
            "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "dtype": "bfloat16", "rope_interleave": True,
            "mlp_layer_types": ["dense"] * spec.dense_layers + ["sparse"] * (spec.layers - spec.dense_layers),
            "rope_parameters": {"rope_type": "default", "rope_theta": spec.theta, "partial_rotary_factor": 1.0},
            "transformers_version": "5.23.0"}
    config |= {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "aux_loss_alpha": 0.001, "ep_size": 1,
        "first_k_dense_replace": spec.dense_layers, "moe_layer_freq": 1, "pretraining_tp": 1, "rope_scaling": spec.yarn,
        "rope_theta": spec.theta, "scoring_func": "sigmoid", "seq_aux": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.33.1"}
    if spec.format == "fp8":   # as published: what is left in bf16 is not said
        config["quantization_config"] = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
    return config


# ---- what experts are chosen by ----------------------------------------------------------------------------

def chosen_with_margin(choices, spec, groups=True):
    """[rows, experts] -> which are chosen, and [rows]: how far those are apart from the others, groups likewise."""
    of_group = spec.experts // spec.groups
    kept, margin = np.ones(choices.shape, bool), np.full(len(choices), np.inf)
    if groups and spec.top_groups < spec.groups:
        sums = np.sort(choices.reshape(-1, spec.groups, of_group), axis=2)[:, :, -2:].sum(2)
        best = np.sort(sums, axis=1)[:, ::-1]
        margin = best[:, spec.top_groups - 1] - best[:, spec.top_groups]
        kept = np.repeat(sums >= best[:, spec.top_groups - 1:spec.top_groups], of_group, axis=1)
    choices = np.where(kept, choices, -np.inf)
    best = np.sort(choices, axis=1)[:, ::-1]
    return choices >= best[:, spec.top_k - 1:spec.top_k], np.minimum(margin, best[:, spec.top_k - 1] - best[:, spec.top_k])


def router_margin(spec, router, logits):
    choices = logits.float().sigmoid() + router.e_score_correction_bias.float()
    return float(chosen_with_margin(choices.double().numpy(), spec)[1].min())


def token_codes(rng, spec, router, bias, width):
    """A code [vocab, width] a token: of many drawn, the one for which the router separates best, however long the rest of a row is."""
    codes, best, tokens = rng.normal(0, 1, (spec.vocab, width)), np.full(spec.vocab, -1.0), np.arange(spec.vocab)
    for _ in range(1500):
        drawn = rng.normal(0, 1, (spec.vocab, width))
        better = True
        for scale in (1, 0.75, 0.5):
            choices = 1 / (1 + np.exp(-scale * drawn @ router.T)) + bias
            chosen, gap = chosen_with_margin(choices, spec)
            better &= (gap > best) & chosen[tokens, tokens % spec.experts]
            if spec.groups > 1:    # every second token would choose otherwise without groups
                better &= (tokens % 2 == 0) | (chosen != chosen_with_margin(choices, spec, groups=False)[0]).any(1)
            else:                  # and without the correction
                better &= (tokens % 2 == 0) | (chosen != chosen_with_margin(choices - bias, spec)[0]).any(1)
            low = gap if scale == 1 else np.minimum(low, gap)
        gap = low
        codes[better], best[better] = drawn[better], gap[better]
    return codes


# ---- the checkpoint ----------------------------------------------------------------------------------------

def make_weights(spec, rng):
    hidden = spec.hidden
    reserved = min(hidden // 4, 24)        # dimensions that carry the token's code; layers hardly write to them
    router_rows, router_norm = rng.normal(0, 1, (spec.experts, reserved)), rng.normal(1, 0.15, reserved)
    router_rows *= 1.5 / np.linalg.norm(router_rows, axis=1, keepdims=True)
    # Below what a sigmoid adds: a rejected expert that counted as 0 would win.
    bias = rng.uniform(-0.2, 0.2, spec.experts) - 1.2

    tensors = {}
    def bf16(name, array):
        tensors[name] = torch.from_numpy(np.asarray(array, dtype=np.float32)).to(torch.bfloat16).contiguous()
    def module(name, rows, width, gain, quiet=False):
        weight = rng.normal(0, gain / math.sqrt(width), (rows, width))
        if quiet:
            weight[:reserved] *= 0.02
        bf16(name + ".weight", weight)
        if spec.format == "fp8":
            tensors.update({f"{name}.{k}": v for k, v in fp8_blocks(tensors[name + ".weight"].float(), narrow=False).items()})
    def mlp(prefix, width):
        module(prefix + "gate_proj", width, hidden, 2.0)
        module(prefix + "up_proj", width, hidden, 1.6)
        module(prefix + "down_proj", hidden, width, 0.35, quiet=True)
    def attention(layer):
        q_rows = spec.heads * (spec.plain + spec.rotated)
        if spec.query_rank:
            module(layer + "q_a_proj", spec.query_rank, hidden, 0.9)
            bf16(layer + "q_a_layernorm.weight", rng.normal(1.2, 0.3, spec.query_rank))
            module(layer + "q_b_proj", q_rows, spec.query_rank, 1.0)
        else:
            module(layer + "q_proj", q_rows, hidden, 1.1)
        # So short that the norm's eps counts.
        kv = rng.normal(0, 1 / math.sqrt(hidden), (spec.rank + spec.rotated, hidden))
        kv[:spec.rank] *= 0.004
        bf16(layer + "kv_a_proj_with_mqa.weight", kv)
        if spec.format == "fp8":
            tensors.update({f"{layer}kv_a_proj_with_mqa.{k}": v for k, v in fp8_blocks(tensors[layer + "kv_a_proj_with_mqa.weight"].float(), narrow=False).items()})
        bf16(layer + "kv_a_layernorm.weight", rng.normal(1.2, 0.3, spec.rank))
        module(layer + "kv_b_proj", spec.heads * (spec.plain + spec.value), spec.rank, 0.8)
        module(layer + "o_proj", hidden, spec.heads * spec.value, 1.0, quiet=True)

    embed = rng.normal(0, 1, (spec.vocab, hidden))
    embed[:, :reserved] = token_codes(rng, spec, router_rows * router_norm, bias, reserved)
    bf16("model.embed_tokens.weight", embed)
    for i in range(spec.layers):
        layer = f"model.layers.{i}."
        bf16(layer + "input_layernorm.weight", rng.normal(1, 0.15, hidden))
        attention(layer + "self_attn.")
        bf16(layer + "post_attention_layernorm.weight", np.concatenate((router_norm, rng.normal(1, 0.15, hidden - reserved))))
        if i < spec.dense_layers:
            mlp(layer + "mlp.", 2 * hidden)
            continue
        # The layers' routers are one router whose groups, and experts in them, are permuted.
        order = rng.permutation(spec.groups)[:, None] * (spec.experts // spec.groups) + \
            np.stack([rng.permutation(spec.experts // spec.groups) for _ in range(spec.groups)])
        router = rng.normal(0, 0.004, (spec.experts, hidden))
        router[:, :reserved] = router_rows[order.flatten()]
        bf16(layer + "mlp.gate.weight", router)
        tensors[layer + "mlp.gate.e_score_correction_bias"] = torch.from_numpy(bias[order.flatten()].astype(np.float32))
        mlp(layer + "mlp.shared_experts.", spec.shared * spec.intermediate)
        for e in range(spec.experts):
            mlp(f"{layer}mlp.experts.{e}.", spec.intermediate)
    bf16("model.norm.weight", rng.normal(1, 0.15, hidden))
    bf16("lm_head.weight", rng.normal(0, 2.2 / math.sqrt(hidden), (spec.vocab, hidden)))
    for i in range(spec.drafts):           # some of what such a layer has; nobody reads it
        layer = f"model.layers.{spec.layers + i}."
        bf16(layer + "eh_proj.weight", rng.normal(0, 1, (hidden, 2 * hidden)))
        bf16(layer + "enorm.weight", rng.normal(1, 0.1, hidden))
        bf16(layer + "shared_head.norm.weight", rng.normal(1, 0.1, hidden))
    return tensors


def save_checkpoint(spec, tensors, folder):
    make_cases.save_files(config_of(spec), tensors, folder, spec.shards)


# ---- the reference -----------------------------------------------------------------------------------------

def load_reference(config_json, tensors, dtype=torch.float32):
    """`latent_norm_eps` of the config, which no file has, is for mistakes."""
    config_json = copy.deepcopy({k: v for k, v in config_json.items() if k != "quantization_config"})
    eps = config_json.pop("latent_norm_eps", None)
    config_json["num_nextn_predict_layers"] = 0
    glm = config_json["model_type"] == "glm4_moe_lite"
    config = (Glm4MoeLiteConfig if glm else DeepseekV3Config)(**config_json)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = (Glm4MoeLiteForCausalLM if glm else DeepseekV3ForCausalLM)(config)
    layers = config.num_hidden_layers
    state = decoded({k: v for k, v in tensors.items() if not any(k.startswith(f"model.layers.{i}.") for i in range(layers, layers + 2))})
    state |= {k: v.float() for k, v in tensors.items() if k.endswith("e_score_correction_bias")}
    for i in range(layers):                # transformers 5 keeps a layer's experts in two tensors
        prefix = f"model.layers.{i}.mlp.experts."
        of = lambda e, part: state.pop(f"{prefix}{e}.{part}_proj.weight")
        if f"{prefix}0.gate_proj.weight" not in state:
            continue
        experts = [(of(e, "gate"), of(e, "up"), of(e, "down")) for e in range(config.n_routed_experts)]
        state[prefix + "gate_up_proj"] = torch.stack([torch.cat((g, u)) for g, u, _ in experts])
        state[prefix + "down_proj"] = torch.stack([d for _, _, d in experts])
    model.load_state_dict(state, strict=True)
    if eps is not None:
        for layer in model.model.layers:
            layer.self_attn.kv_a_layernorm.variance_epsilon = eps
    return model.to(dtype).eval()


def router_modules(model):
    return [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]


def mistakes(spec):
    """Wrong computations that this case must tell from the right one: name -> (config change, weight change)."""
    ones = lambda suffix: lambda n, t: torch.ones_like(t) if n.endswith(suffix) else t
    zeros = lambda part: lambda n, t: torch.zeros_like(t) if part in n else t
    found = {"no weight of the latent's norm": ({}, ones("kv_a_layernorm.weight")),
             "the latent's norm with another eps": ({"latent_norm_eps": 1e-5}, None),
             "no shared expert": ({}, zeros("shared_experts.down_proj.weight")),
             "a correction that weighs nothing": ({}, zeros("e_score_correction_bias")),
             "no routed scale": ({"routed_scaling_factor": 1.0}, None),
             "other sum of weights": ({"norm_topk_prob": not spec.renormalise}, None)}
    if spec.query_rank:
        found["no weight of the queries' norm"] = ({}, ones("q_a_layernorm.weight"))
    if spec.groups > 1:
        found["no groups"] = ({"n_group": 1, "topk_group": 1}, None)
    if spec.glm:
        found["other theta"] = ({"rope_parameters": {"rope_type": "default", "rope_theta": spec.theta * 1.3}}, None)
        found["halves that turn"] = ({"rope_interleave": False}, None)
        return found
    found |= {"halves that turn": ({"rope_interleave": False}, None), "other theta": ({"rope_theta": spec.theta * 1.3}, None),
              "no factor on scores": ({"rope_scaling": spec.yarn | {"attention_factor": 1.0, "mscale_all_dim": 0.0}}, None),
              "plain rope": ({"rope_scaling": None}, None)}
    return found


if __name__ == "__main__":
    sys.exit(make_cases.make_family(sys.modules[__name__]))
