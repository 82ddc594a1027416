#!/usr/bin/env python3
"""Makes the parity cases of tests/data/parity: tiny random gpt-oss checkpoints and the answers of transformers.

    make_cases.py [--out DIR] [--list] [CASE ...]

Needs torch, transformers, safetensors, tokenizers and jinja2 (README.md here names the versions). A case
follows from its seed alone. What is made, why it is made so, and what is refused: README.md here.
"""
import argparse
import copy
import functools
import hashlib
import json
import math
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from transformers import GptOssConfig, GptOssForCausalLM

ROOT = Path(__file__).resolve().parents[2]
STEPS, TOP = 32, 20
LENGTHS = (1, 7, 33, 129, 230)
EOS, PAD, BOS, CALL = 404, 401, 400, 414
FP32 = {"max_abs": 0.005, "mean_abs": 0.0005}
FP32_TIE = 0.02
MIN_GREEDY_MARGIN = 0.05
MIN_ROUTER_MARGIN = 0.25
CANDIDATES = 128

YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
        "rope_type": "yarn", "truncate": False}


@dataclass
class Spec:
    seed: int
    hidden: int
    layers: list            # "s" sliding, "f" full, one letter a layer
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    top_k: int
    intermediate: int
    window: int
    rope: dict = field(default_factory=lambda: dict(YARN))
    theta: float = 150000.0
    tied: bool = False
    vocab: int = 448
    eps: float = 1e-5
    swiglu_limit: float = 7.0
    gate_gain: float = 2.0   # standard deviation of the gates before the clamp
    shards: int = 1
    modern_config: bool = False  # rope_parameters and dtype as transformers 5 writes them
    zero_scales: bool = False    # some blocks with scale byte 0 (decodes to fp32 subnormals)


CASES = {
    "mha_top1": Spec(seed=11, hidden=64, layers="sf", heads=4, kv_heads=4, head_dim=32, experts=4, top_k=1,
                     intermediate=32, window=12, rope={k: v for k, v in YARN.items() if k != "truncate"}, zero_scales=True),
    "gqa8_all_experts": Spec(seed=2, hidden=64, layers="sf", heads=8, kv_heads=1, head_dim=32, experts=3, top_k=3,
                             intermediate=32, window=50,
                             rope=YARN | {"factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 16.0, "beta_slow": 2.0}),
    "tied_full": Spec(seed=3, hidden=96, layers="ff", heads=3, kv_heads=1, head_dim=32, experts=8, top_k=4,
                      intermediate=32, window=40, rope=YARN | {"factor": 1.0}, tied=True, vocab=480),
    "sliding_default_rope": Spec(seed=4, hidden=64, layers="ss", heads=4, kv_heads=2, head_dim=32, experts=5, top_k=2,
                                 intermediate=64, window=100, rope={"rope_type": "default"}, theta=10000.0, modern_config=True),
    "deep_shards": Spec(seed=5, hidden=32, layers="sfsf", heads=2, kv_heads=1, head_dim=64, experts=16, top_k=4,
                        intermediate=32, window=128, shards=3),
    "short_rope_tight_swiglu": Spec(seed=6, hidden=128, layers="s", heads=4, kv_heads=2, head_dim=32, experts=5, top_k=2,
                                    intermediate=64, window=16, rope=YARN | {"truncate": True, "original_max_position_embeddings": 64},
                                    tied=True, eps=1e-6, swiglu_limit=1.5),
}

# ---- the checkpoint ----------------------------------------------------------------------------------------

def config_of(spec):
    """config.json, with the keys of openai/gpt-oss-20b."""
    config = {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True, "attention_dropout": 0.0,
        "head_dim": spec.head_dim, "hidden_act": "silu", "hidden_size": spec.hidden, "initial_context_length": 4096,
        "initializer_range": 0.02, "intermediate_size": spec.intermediate,
        "layer_types": [{"s": "sliding_attention", "f": "full_attention"}[c] for c in spec.layers],
        "max_position_embeddings": 131072, "num_attention_heads": spec.heads, "num_experts_per_tok": spec.top_k,
        "experts_per_token": spec.top_k, "num_hidden_layers": len(spec.layers), "num_key_value_heads": spec.kv_heads,
        "num_local_experts": spec.experts, "output_router_logits": False,
        "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                           "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"},
        "rms_norm_eps": spec.eps, "router_aux_loss_coef": 0.9, "sliding_window": spec.window,
        "swiglu_limit": spec.swiglu_limit, "tie_word_embeddings": spec.tied, "use_cache": True, "vocab_size": spec.vocab,
        "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD,
    }
    if spec.modern_config:
        config |= {"rope_parameters": spec.rope | {"rope_theta": spec.theta}, "dtype": "bfloat16", "transformers_version": "5.23.0"}
    else:
        config |= {"rope_scaling": spec.rope, "rope_theta": spec.theta, "torch_dtype": "bfloat16", "transformers_version": "4.55.0"}
    return config


E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float32)
E2M1_RMS = float(E2M1.square().mean().sqrt())


def random_mxfp4(rng, experts, rows, width, gain, zero_scales):
    """Blocks [E, rows, K/32, 16] and scales [E, rows, K/32] whose product with unit activations has about
    `gain` as its standard deviation. Scales differ between blocks, as a quantizer's do."""
    blocks = rng.integers(0, 256, (experts, rows, width // 32, 16), dtype=np.uint8)
    wanted = math.log2(gain / (E2M1_RMS * math.sqrt(width)))
    scales = np.rint(127 + wanted + rng.normal(0, 0.7, (experts, rows, width // 32))).clip(1, 254).astype(np.uint8)
    if zero_scales:
        scales[rng.random(scales.shape) < 0.02] = 0
    return torch.from_numpy(blocks), torch.from_numpy(scales)


def decode_mxfp4(blocks, scales):
    """[E, rows, K] in float32; the low nibble is the even element."""
    values = torch.stack((E2M1[(blocks & 15).long()], E2M1[(blocks >> 4).long()]), -1).flatten(-2)
    return torch.ldexp(values, scales.int().unsqueeze(-1) - 127).flatten(-2)


def token_codes(rng, spec, router, width):
    """A code [vocab, width] a token: of many drawn, the one for which the router separates best."""
    codes, best = rng.normal(0, 1, (spec.vocab, width)), np.full(spec.vocab, -1.0)
    for _ in range(400 if spec.top_k < spec.experts else 0):
        drawn = rng.normal(0, 1, (spec.vocab, width))
        logits = np.sort(drawn @ router.T / math.sqrt(width), axis=1)[:, ::-1]
        gap = logits[:, spec.top_k - 1] - logits[:, spec.top_k]
        better = (gap > best) & (best < 0.9)
        codes[better], best[better] = drawn[better], gap[better]
    return codes


def make_weights(spec, rng):
    """The checkpoint's tensors as stored: bf16, and MXFP4 blocks and scales as bytes."""
    hidden, q_width, kv_width = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    reserved = min(hidden // 4, 24)        # dimensions that carry the token's code; layers hardly write to them
    # The layers' routers are one router with its experts permuted, so that a code that separates does so in all.
    router_rows, router_norm = rng.normal(0, 1, (spec.experts, reserved)), rng.normal(1, 0.15, reserved)
    router_rows *= math.sqrt(reserved) / np.linalg.norm(router_rows, axis=1, keepdims=True)
    quiet = np.ones((hidden, 1))
    quiet[:reserved] = 0.02

    tensors = {}
    def bf16(name, array):
        tensors[name] = torch.from_numpy(np.asarray(array, dtype=np.float32)).to(torch.bfloat16).contiguous()
    def matrix(rows, width, gain):
        return rng.normal(0, gain / math.sqrt(width), (rows, width))

    embed = rng.normal(0, 1, (spec.vocab, hidden))
    embed[:, :reserved] = token_codes(rng, spec, router_rows * router_norm, reserved)
    bf16("model.embed_tokens.weight", embed)
    for i in range(len(spec.layers)):
        layer = f"model.layers.{i}."
        bf16(layer + "input_layernorm.weight", rng.normal(1, 0.15, hidden))
        for name, rows, gain in (("q", q_width, 1.3), ("k", kv_width, 1.3), ("v", kv_width, 1.0)):
            bf16(f"{layer}self_attn.{name}_proj.weight", matrix(rows, hidden, gain))
            bf16(f"{layer}self_attn.{name}_proj.bias", rng.normal(0, 0.3, rows))
        bf16(layer + "self_attn.o_proj.weight", matrix(hidden, q_width, 1.2) * quiet)
        bf16(layer + "self_attn.o_proj.bias", rng.normal(0, 0.1, hidden) * quiet[:, 0])
        bf16(layer + "self_attn.sinks", rng.normal(1.0, 1.0, spec.heads))
        bf16(layer + "post_attention_layernorm.weight", np.concatenate((router_norm, rng.normal(1, 0.15, hidden - reserved))))
        router = rng.normal(0, 0.004, (spec.experts, hidden))
        router[:, :reserved] = rng.permutation(router_rows) * (3 / math.sqrt(reserved))
        bf16(layer + "mlp.router.weight", router)
        bf16(layer + "mlp.router.bias", rng.normal(0, 0.05, spec.experts))
        experts = layer + "mlp.experts."
        for name, rows, width, gain in (("gate_up", 2 * spec.intermediate, hidden, spec.gate_gain), ("down", hidden, spec.intermediate, 0.35)):
            blocks, scales = random_mxfp4(rng, spec.experts, rows, width, gain, spec.zero_scales)
            if name == "down":   # hardly write to the codes' dimensions
                scales[:, :reserved] = (scales[:, :reserved].int() - 6).clamp(min=0).to(torch.uint8)
            tensors[f"{experts}{name}_proj_blocks"], tensors[f"{experts}{name}_proj_scales"] = blocks, scales
        bf16(experts + "gate_up_proj_bias", rng.normal(0, 0.3, (spec.experts, 2 * spec.intermediate)))
        bf16(experts + "down_proj_bias", rng.normal(0, 0.1, (spec.experts, hidden)) * quiet[:, 0])
    # With tied embeddings the final norm sets how peaked the logits are; its signs are mixed, or every token would
    # be followed by itself.
    bf16("model.norm.weight", rng.normal(0, 2.2 / math.sqrt(hidden), hidden) if spec.tied else rng.normal(1, 0.15, hidden))
    if not spec.tied:
        bf16("lm_head.weight", matrix(spec.vocab, hidden, 2.2))
    return tensors


def save_checkpoint(spec, tensors, folder):
    save_files(config_of(spec), tensors, folder, spec.shards)


def save_files(config, tensors, folder, shards=1):
    folder.mkdir(parents=True)
    def write(name, value):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n")
    write("config.json", config)
    write("generation_config.json", {"bos_token_id": BOS, "do_sample": True, "eos_token_id": [EOS, PAD, CALL],
                                     "pad_token_id": PAD, "transformers_version": "4.55.0"})
    example = ROOT / "tests/data/parity/example"
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(example / name, folder / name)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return
    names, where = list(tensors), {}
    for s in range(shards):
        file = f"model-{s + 1:05}-of-{shards:05}.safetensors"
        part = names[s * len(names) // shards:(s + 1) * len(names) // shards]
        save_file({n: tensors[n] for n in part}, folder / file, {"format": "pt"})
        where |= dict.fromkeys(part, file)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    write("model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))})


# ---- the reference -----------------------------------------------------------------------------------------

def load_reference(config_json, tensors, dtype=torch.float32):
    """transformers' own model on the decoded weights."""
    # A copy: transformers completes the nested rope dictionary in place.
    config = GptOssConfig(**{k: copy.deepcopy(v) for k, v in config_json.items() if k != "quantization_config"})
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = GptOssForCausalLM(config)
    state = {}
    for name, tensor in tensors.items():
        if name.endswith("_blocks"):
            decoded = decode_mxfp4(tensor, tensors[name.removesuffix("_blocks") + "_scales"])
            state[name.removesuffix("_blocks")] = decoded.transpose(1, 2).contiguous()
        elif not name.endswith("_scales"):
            state[name] = tensor.float()
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model.to(dtype).eval()


def router_modules(model):
    return [layer.mlp.router for layer in model.model.layers]


def router_margin(spec, router, logits):
    if spec.top_k == logits.shape[-1]:
        return math.inf
    best = logits.sort(-1, descending=True).values
    return float((best[:, spec.top_k - 1] - best[:, spec.top_k]).min())


class RouterWatch:
    """Smallest distance between a chosen and a rejected expert, and which experts were hit, over all passes."""
    def __init__(self, routers, margin_of):
        self.margin, self.hit, self.margin_of = math.inf, {}, margin_of
        self.handles = [r.register_forward_hook(self.hook(i)) for i, r in enumerate(routers)]
    def hook(self, layer):
        def see(router, __, result):
            logits, _, chosen = result
            self.hit.setdefault(layer, set()).update(chosen.flatten().tolist())
            self.margin = min(self.margin, self.margin_of(router, logits))
        return see
    def close(self):
        for h in self.handles:
            h.remove()


@torch.no_grad()
def greedy(model, prompts):
    """Greedy continuations of prompts of one length [n, length], with the cache: ids [n, STEPS], log-probabilities [n, STEPS, vocab]."""
    ids, cache, rows, chosen = torch.tensor(prompts), None, [], []
    for _ in range(STEPS):
        out = model(ids, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        lp = torch.log_softmax(out.logits[:, -1].double(), -1)
        ids = lp.argmax(-1, keepdim=True)
        rows.append(lp)
        chosen.append(ids)
    return torch.cat(chosen, 1), torch.stack(rows, 1)


@torch.no_grad()
def whole(model, ids):
    """Log-probabilities [length, vocab] of one pass over a whole sequence."""
    return torch.log_softmax(model(torch.tensor([ids]), use_cache=False).logits[0].double(), -1)


# ---- prompts -----------------------------------------------------------------------------------------------

def windows(rng, tokenizer, text, length, count):
    """`count` pieces of the passages that encode to exactly `length` tokens."""
    found = []
    while len(found) < count:
        start = int(rng.integers(0, len(text) - 4))
        for end in range(start + 1, min(len(text), start + 6 * length + 8) + 1):
            n = len(tokenizer.encode(text[start:end], add_special_tokens=False).ids)
            if n == length:
                found.append(text[start:end])
            if n >= length:
                break
    return found


def chats(rng, text, turns, count):
    sentences = [s for s in text.replace("\n", " ").split(". ") if 15 < len(s) < 110]
    pick = lambda: str(rng.choice(sentences)).strip() + "."
    made = []
    for _ in range(count):
        messages = [{"role": "user", "content": pick()}]
        if turns > 1:
            messages = [{"role": "system", "content": "You tell old tales in plain words."}, *messages,
                        {"role": "assistant", "content": pick()}, {"role": "user", "content": pick()}]
        made.append(messages)
    return made


def choose_prompts(model, rng, tokenizer, template):
    """One prompt a kind: of all candidates, the one whose greedy continuation has the largest smallest margin."""
    text = (ROOT / "tools/parity/passages.txt").read_text()
    encode = lambda s: tokenizer.encode(s, add_special_tokens=False).ids
    prompts = []
    for kind in [*LENGTHS, "chat1", "chat2"]:
        best = None
        candidates = [{"id": f"len{kind}", "text": t} for t in windows(rng, tokenizer, text, kind, CANDIDATES)] if isinstance(kind, int) else \
            [{"id": kind, "messages": m, "text": template.render(messages=m, add_generation_prompt=True)}
             for m in chats(rng, text, 2 if kind == "chat2" else 1, CANDIDATES // 2)]
        by_length = {}
        for c in candidates:
            c["prompt_ids"] = encode(c["text"])
            by_length.setdefault(len(c["prompt_ids"]), []).append(c)
        for group in by_length.values():
            _, lp = greedy(model, [c["prompt_ids"] for c in group])
            top2 = lp.topk(2, -1).values
            for c, m in zip(group, (top2[..., 0] - top2[..., 1]).min(-1).values.tolist()):
                if best is None or m > best[0]:
                    best = (m, c)
        prompts.append(best[1])
    return prompts


# ---- the answers -------------------------------------------------------------------------------------------

def r6(x):
    return round(float(x), 6)


def answer(model, prompt):
    """The prompt's reference, and the worst difference between cached decode and one pass."""
    ids, cached = greedy(model, [prompt["prompt_ids"]])
    ids = ids[0].tolist()
    n = len(prompt["prompt_ids"])
    lp = whole(model, prompt["prompt_ids"] + ids)
    steps = lp[n - 1:n - 1 + STEPS]
    top = steps.topk(TOP, -1)
    assert steps.argmax(-1).tolist() == ids, "cached and whole passes choose differently"
    return prompt | {
        "greedy_ids": ids,
        "greedy_logprobs": [r6(steps[i, t]) for i, t in enumerate(ids)],
        "margins": [r6(a - b) for a, b in top.values[:, :2].tolist()],
        "entropy": [round(float(-(row.exp() * row).sum()), 3) for row in steps],
        "prompt_logprobs": [None] + [r6(lp[i - 1, prompt["prompt_ids"][i]]) for i in range(1, n)],
        "top": [[[i, r6(v)] for i, v in zip(a, b)] for a, b in zip(top.indices.tolist(), top.values.tolist())],
    }, float((cached[0] - steps).abs().max())


def difference(model, prompts):
    """|another computation - reference| over the reference's likeliest ids, per prompt [steps, TOP]."""
    result = {}
    for p in prompts:
        lp = whole(model, p["prompt_ids"] + p["greedy_ids"])[len(p["prompt_ids"]) - 1:][:STEPS]
        ids = torch.tensor([[i for i, _ in row] for row in p["top"]])
        want = torch.tensor([[v for _, v in row] for row in p["top"]], dtype=torch.float64)
        result[p["id"]] = (lp.gather(1, ids) - want).abs()
    return result


def yardstick(model, prompts):
    d = difference(model, prompts)
    every = torch.cat([x.flatten() for x in d.values()])
    return {"max": r6(every.max()), "mean": r6(every.mean()), "p99": r6(every.quantile(0.99)),
            "prompt_max": {k: r6(v.max()) for k, v in d.items()}, "prompt_mean": {k: r6(v.mean()) for k, v in d.items()}}


def mistakes(spec):
    """Wrong computations that this case must tell from the right one: name -> (config change, weight change)."""
    rope = spec.rope
    yarn = rope["rope_type"] == "yarn"
    found = {"no sinks": ({}, lambda n, t: torch.full_like(t, -1e4) if n.endswith("sinks") else t),
             "gate and up swapped": ({}, lambda n, t: t.unflatten(1, (-1, 2)).flip(2).flatten(1, 2) if ".gate_up_proj_" in n else t),
             "no expert bias": ({}, lambda n, t: torch.zeros_like(t) if n.endswith("down_proj_bias") else t),
             "clamp off": ({"swiglu_limit": 1e9}, None)}
    if "s" in spec.layers:
        found |= {f"window {d:+}": ({"sliding_window": spec.window + d}, None) for d in (-1, 1)}
    if "f" in spec.layers:
        found["all sliding"] = ({"layer_types": ["sliding_attention"] * len(spec.layers)}, None)
    if "s" in spec.layers:
        found["all full"] = ({"layer_types": ["full_attention"] * len(spec.layers)}, None)
    def other_rope(change):
        return {"rope_parameters" if spec.modern_config else "rope_scaling": change}
    if yarn and rope["factor"] > 1:
        found["other truncate"] = (other_rope(rope | {"truncate": not rope.get("truncate", True)}), None)
        found["no attention factor"] = (other_rope(rope | {"attention_factor": 1.0}), None)
        found["plain rope"] = (other_rope({"rope_type": "default"}), None)
    found["other theta"] = ({"rope_theta": spec.theta * 1.1} if not spec.modern_config else other_rope(rope | {"rope_theta": spec.theta * 1.1}), None)
    return found


def sensitivity(family, spec, tensors, prompts):
    found = {}
    for name, (change, rewrite) in family.mistakes(spec).items():
        wrong = {n: rewrite(n, t) for n, t in tensors.items()} if rewrite else tensors
        d = difference(family.load_reference(family.config_of(spec) | change, wrong), prompts)
        found[name] = round(max(float(x.max()) for x in d.values()), 4)
    return found


def make_case(name, spec, out, family=sys.modules[__name__]):
    """`family` is a module with the config, weights, reference, routers and mistakes of one architecture."""
    torch.manual_seed(spec.seed)
    rng = np.random.default_rng([spec.seed, 20])
    tensors = family.make_weights(spec, rng)
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    family.save_checkpoint(spec, tensors, folder)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    template = jinja2.Template((folder / "chat_template.jinja").read_text())

    model = family.load_reference(family.config_of(spec), tensors)
    prompts = choose_prompts(model, rng, tokenizer, template)
    watch, cached_vs_whole = RouterWatch(family.router_modules(model), functools.partial(getattr(family, "router_margin", router_margin), spec)), 0.0
    answers = []
    for p in prompts:
        a, d = answer(model, p)
        answers.append(a)
        cached_vs_whole = max(cached_vs_whole, d)
    watch.close()
    bf16 = yardstick(family.load_reference(family.config_of(spec), tensors, torch.bfloat16), answers)
    entropy = [e for p in answers for e in p["entropy"]]
    margins = [m for p in answers for m in p["margins"]]
    wrong = sensitivity(family, spec, tensors, answers)
    statistics = {
        "entropy_mean": round(float(np.mean(entropy)), 3), "entropy_min": min(entropy), "entropy_uniform": round(math.log(spec.vocab), 3),
        "margin_min": round(min(margins), 4), "margin_median": round(float(np.median(margins)), 4),
        "router_margin_min": round(watch.margin, 4) if math.isfinite(watch.margin) else None,
        "experts_hit": {str(k): len(v) for k, v in watch.hit.items()}, "cached_vs_full_max": cached_vs_whole, "sensitivity": wrong}
    print(name, json.dumps(statistics), f"bf16 {bf16['max']:.3f}", f"{sum(f.stat().st_size for f in folder.iterdir()) // 1000} KB", flush=True)
    problems = [f"greedy margin {min(margins):.3f}"] if min(margins) < MIN_GREEDY_MARGIN else []
    problems += [f"router margin {watch.margin:.3f}"] if watch.margin < getattr(family, "MIN_ROUTER_MARGIN", MIN_ROUTER_MARGIN) else []
    problems += [f"cached and whole passes differ by {cached_vs_whole:.1e}"] if cached_vs_whole > 1e-4 else []
    problems += [f"{k} changes only {v}" for k, v in wrong.items() if v < 4 * FP32["max_abs"]]
    problems += [f"layer {k} uses {len(v)} experts" for k, v in watch.hit.items() if len(v) < spec.experts]

    expected = {
        "case": name, "model_type": family.config_of(spec)["model_type"], "vocab_size": spec.vocab, "steps": STEPS, "top": TOP,
        "reference": {"transformers": transformers.__version__, "torch": torch.__version__, "dtype": "float32", "attention": "eager", "experts": "eager"},
        "weights_in_checkpoint": True,
        "sha256": {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(folder.glob("*.safetensors"))},
        "statistics": statistics, "yardstick": {"bf16": bf16},
        "thresholds": {"fp32": FP32, "bf16": {"max_abs": round(3 * bf16["max"], 4), "mean_abs": round(2 * max(bf16["prompt_mean"].values()), 5)}},
        "tie_margin": {"fp32": FP32_TIE, "bf16": round(bf16["max"], 4)}}
    lines = json.dumps(expected, indent=1).removesuffix("\n}") + ',\n "prompts": [\n  ' + \
        ",\n  ".join(json.dumps(p, ensure_ascii=False, separators=(",", ":")) for p in answers) + "\n ]\n}\n"
    (folder / "expected.json").write_text(lines)
    with open(folder / "prompts_ids.jsonl", "w") as f:
        f.writelines(json.dumps({"case": f"{name}/{p['id']}", "prompt_ids": p["prompt_ids"]}) + "\n" for p in answers)
    with open(folder / "prompts_text.jsonl", "w") as f:
        f.writelines(json.dumps({"case": f"{name}/{p['id']}"} | ({"messages": p["messages"]} if "messages" in p else {"prompt": p["text"]})) + "\n"
                     for p in answers)
    return problems


def make_family(family):
    """The command line of a maker of other architectures' cases: those of family.CASES, or the named ones."""
    parser = argparse.ArgumentParser(description=family.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--out", type=Path, default=ROOT / "tests/data/parity")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    failed = False
    for name in args.cases or family.CASES:
        for problem in make_case(name, family.CASES[name], args.out, family):
            print(f"error: {name}: {problem}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("cases", nargs="*", metavar="CASE")
    ap.add_argument("--out", type=Path, default=ROOT / "tests/data/parity")
    ap.add_argument("--list", action="store_true")
    a = ap.parse_args()
    if a.list:
        print("\n".join(CASES))
        return 0
    unknown = [c for c in a.cases if c not in CASES]
    if unknown:
        print(f"error: no case {unknown[0]}; there are {', '.join(CASES)}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    failed = False
    for name in a.cases or CASES:
        for problem in make_case(name, CASES[name], a.out):
            print(f"error: {name}: {problem}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
