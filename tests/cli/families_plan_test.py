"""`nibble plan` for each published size of Qwen3-Next, Qwen3.5, DeepSeek-V3, Kimi-K2 and GLM-4.7-Flash on a CPU and on 1, 2 and 4
GPUs: what it says is the table in docs/models.md."""
import json

import pytest

from nibble_program import ROOT, run
from plan_cases import MODELS

# config.json's folder: what its experts (or, dense, its layers) are published in
MODELS_OF_FAMILIES = {"Qwen3-Next-80B-A3B": "bf16", "Qwen3.6-35B-A3B": "bf16", "Qwen3.6-27B": "bf16, dense", "Qwen3.5-122B-A10B": "bf16",
                      "Qwen3.5-397B-A17B": "bf16", "GLM-4.7-Flash": "bf16", "DeepSeek-V3": "fp8", "Kimi-K2-Instruct": "fp8",
                      "Kimi-K2-Thinking": "int4", "Kimi-K2.5": "int4"}
MACHINES = ("cpu", "h200x1", "h200x2", "h200x4")
ON_ONE_GPU = ("GLM-4.7-Flash",)  # whose kernels a program with device code has
TOO_LARGE = "too large"


def cell(model, machine):
    """(words for the table, the plan or None)"""
    code, out, err = run("plan", ROOT / MODELS / model, "--as", machine, "--json")
    if code != 0:
        assert code == 2 and len(err.splitlines()) == 1, err
        assert "of a GPU may be taken" in err, err
        return TOO_LARGE, None
    plan = json.loads(out)
    ranks = next(choice["value"] for choice in plan["choices"] if choice["field"] == "tp")
    bound = plan["bound"]["decode_tokens_per_s"]["1"]
    return (f"{bound:.1f}" if bound < 100 else f"{bound:.0f}") + (f" on {ranks}" if machine[-1] not in ("u", ranks) else ""), plan


def row(model):
    cells, weights = [], None
    for machine in MACHINES:
        words, plan = cell(model, machine)
        if machine == "cpu":
            assert plan["not_built"] == [], "a CPU runs it"
            weights = plan["memory"]["weights"]
        elif plan is not None and model not in ON_ONE_GPU:
            assert plan["not_built"], "no GPU runs it yet"
        cells.append(words)
    return f"| {model} | {MODELS_OF_FAMILIES[model]} | {weights / 1e9:,.0f} | {' | '.join(cells)} |"


@pytest.mark.parametrize("model", MODELS_OF_FAMILIES)
def test_the_documentation_says_what_a_plan_says(model):
    assert row(model) in (ROOT / "docs/models.md").read_text().splitlines()


def test_a_dense_model_has_no_experts():
    code, out, err = run("plan", ROOT / MODELS / "Qwen3.6-27B", "--as", "cpu")
    assert code == 0, err
    assert ", dense of 17408; " in out and " experts of 0 " not in out
