"""--dtype fp8 against an emulation in numpy: rows of a prompt meet FP8 weights rounded to E4M3 with one power of two a row,
rows of an answer as bfloat16. The emulation takes what nibble generated as given and looks at every log-probability."""
import json

import ml_dtypes
import numpy as np
import pytest
from safetensors import deserialize

from nibble_program import PARITY, generate

CASES = ["qwen3_moe_fp8", "qwen3_moe_fp8_row"]
STORED = {"BF16": ml_dtypes.bfloat16, "F32": np.float32, "F8_E4M3": ml_dtypes.float8_e4m3fn}
GREEDY = ("--max-tokens", 12, "--temperature", 0, "--ignore-eos", "--logprobs", 20, "--prompt-logprobs")


def bf16(x):
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def rounded(x):
    """Rows of bfloat16 values to E4M3 times a power of two: the smallest with which no magnitude is above 448."""
    largest = np.abs(x).max(-1, keepdims=True).astype(np.float64)
    assert np.isfinite(largest).all()
    exponents = np.maximum(-100, np.ceil(np.log2(np.where(largest > 0, largest, 1) / 448)))
    scales = np.exp2(exponents).astype(np.float32)
    return (x / scales).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scales


class Matrix:
    """A module's weight with its scales."""

    def __init__(self, parts):
        codes = parts["weight"]
        self.fp8 = codes.dtype == ml_dtypes.float8_e4m3fn
        self.values = codes.astype(np.float64)
        if "weight_scale_inv" in parts:
            wide = parts["weight_scale_inv"].astype(np.float64).repeat(128, 0).repeat(128, 1)
            self.values *= wide[:codes.shape[0], :codes.shape[1]]
        elif "weight_scale" in parts:
            self.values *= parts["weight_scale"].astype(np.float64).reshape(-1, 1)

    def times(self, x, of_prompt):
        """x [rows, K]; rounds the rows that of_prompt names, where the weights are FP8."""
        x = bf16(x)
        if self.fp8:
            x = np.where(of_prompt[:, None], rounded(x), x)
        return (x.astype(np.float64) @ self.values.T).astype(np.float32)


class Qwen3Moe:
    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        modules = {}
        for file in folder.glob("*.safetensors"):
            for name, view in deserialize(file.read_bytes()):
                module, _, part = name.rpartition(".")
                modules.setdefault(module, {})[part] = np.frombuffer(view["data"], STORED[view["dtype"]]).reshape(view["shape"])
        self.vectors = {k: v["weight"].astype(np.float32) for k, v in modules.items() if v["weight"].ndim == 1}
        self.matrices = {k: Matrix(v) for k, v in modules.items() if v["weight"].ndim == 2}
        self.embedding = modules["model.embed_tokens"]["weight"].astype(np.float32)
        self.matrices.setdefault("lm_head", self.matrices["model.embed_tokens"])

    def norm(self, x, name):
        scale = 1 / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + self.config["rms_norm_eps"])
        return (x * scale * self.vectors[name]).astype(np.float32)

    def turned(self, x):
        """[rows, heads, width] by rope, halves."""
        half = x.shape[-1] // 2
        theta = self.config.get("rope_theta") or self.config["rope_parameters"]["rope_theta"]
        angles = np.arange(len(x))[:, None, None] * theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate((x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin), -1).astype(np.float32)

    def attention(self, x, layer, of_prompt):
        heads, groups, width = self.config["num_attention_heads"], self.config["num_key_value_heads"], self.config["head_dim"]
        of = lambda name: self.matrices[f"{layer}.{name}_proj"].times(x, of_prompt).reshape(len(x), -1, width)
        q, k, v = self.turned(self.norm(of("q"), f"{layer}.q_norm")), bf16(self.turned(self.norm(of("k"), f"{layer}.k_norm"))), bf16(of("v"))
        k, v = k.repeat(heads // groups, 1), v.repeat(heads // groups, 1)
        scores = np.einsum("ihd,jhd->hij", q.astype(np.float64), k) / np.sqrt(width)
        scores += np.triu(np.full((len(x), len(x)), -np.inf), 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("hij,jhd->ihd", shares / shares.sum(-1, keepdims=True), v).reshape(len(x), -1)
        return self.matrices[f"{layer}.o_proj"].times(out.astype(np.float32), of_prompt)

    def experts(self, x, layer, of_prompt):
        logits = self.matrices[f"{layer}.gate"].times(x, of_prompt).astype(np.float64)
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        chosen = np.argsort(-shares, -1, kind="stable")[:, :self.config["num_experts_per_tok"]]
        total = np.zeros_like(x)
        for expert in range(self.config["num_experts"]):
            rows = np.flatnonzero((chosen == expert).any(-1))
            if not len(rows):
                continue
            times = lambda name, values: self.matrices[f"{layer}.experts.{expert}.{name}_proj"].times(values, of_prompt[rows])
            gate, up = times("gate", x[rows]), times("up", x[rows])
            weight = shares[rows, expert]
            if self.config["norm_topk_prob"]:
                weight = weight / np.take_along_axis(shares, chosen, -1)[rows].sum(-1)
            total[rows] += weight[:, None].astype(np.float32) * times("down", gate / (1 + np.exp(-gate)) * up)
        return total

    def logprobs(self, ids, prompt, rounds):
        """[rows, vocabulary] behind each of the ids, of which the first `prompt` are a prompt's."""
        of_prompt = (np.arange(len(ids)) < prompt) & rounds
        x = self.embedding[ids]
        for i in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{i}"
            x = x + self.attention(self.norm(x, f"{layer}.input_layernorm"), f"{layer}.self_attn", of_prompt)
            x = x + self.experts(self.norm(x, f"{layer}.post_attention_layernorm"), f"{layer}.mlp", of_prompt)
        logits = self.matrices["lm_head"].times(self.norm(x, "model.norm"), of_prompt).astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def differences(model, lines, rounds):
    """Of every log-probability that nibble gave, from the emulation's."""
    found = []
    for line in lines:
        prompt, answer = line["prompt_ids"], line["token_ids"]
        expected = model.logprobs(np.array(prompt + answer), len(prompt), rounds)
        found += [line["prompt_logprobs"][i] - expected[i - 1, prompt[i]] for i in range(1, len(prompt))]
        for step, top in enumerate(line["top_logprobs"]):
            found += [logprob - expected[len(prompt) - 1 + step, token] for token, logprob in top]
    return np.abs(found)


@pytest.mark.parametrize("case", CASES)
def test_prompts_are_rounded_to_fp8_as_the_contract_says_and_answers_are_not(case):
    lines = generate(PARITY / case, "--prompts", PARITY / case / "prompts_ids.jsonl", *GREEDY, "--dtype", "fp8")
    model, limits = Qwen3Moe(PARITY / case), json.loads((PARITY / case / "expected.json").read_text())["thresholds"]["bf16"]
    near, far = differences(model, lines, True), differences(model, lines, False)
    assert near.max() <= limits["max_abs"] and near.mean() <= limits["mean_abs"]
    assert near.mean() < far.mean() / 10, "an emulation that rounds nothing is told from it"
    plain = generate(PARITY / case, "--prompts", PARITY / case / "prompts_ids.jsonl", *GREEDY, "--dtype", "bfloat16")
    assert differences(model, plain, False).mean() < far.mean() / 10
