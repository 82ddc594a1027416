"""The README's figures are what the program prints."""
import json
import re

import pytest

from nibble_program import ROOT, run

README = (ROOT / "README.md").read_text()
ROWS = {name: figures for name, *figures in
        re.findall(r"^\| `[\w-]+/([\w.-]+)` \| ([\d.]+) GB \| ([\d.]+) GB \| ([\d.]+) GB \|$", README, re.M)}


def planned(model, *machine):
    """Bytes of weights and of all, for one conversation of 8,192 tokens."""
    code, out, err = run("plan", ROOT / "tests/data/models" / model, "--as", *machine, "--max-num-seqs", 1,
                         "--max-model-len", 8192, "--json")
    assert code == 0, err
    memory = json.loads(out)["memory"]
    return memory["weights"], memory["total"]


def test_the_readme_has_a_row_for_each_published_model():
    assert sorted(ROWS) == ["GLM-4.7-Flash", "Qwen3-30B-A3B", "Qwen3.6-35B-A3B", "gpt-oss-120b", "gpt-oss-20b"]


@pytest.mark.parametrize("model", ROWS)
def test_the_memory_that_a_model_needs_is_what_plan_prints(model):
    weights, on_cpu = planned(model, "h100x1", "--device", "cpu")
    weights_there, on_gpu = planned(model, "h100x1")
    assert weights_there == weights
    assert ROWS[model] == [f"{size / 1e9:.1f}" for size in (weights, on_cpu, on_gpu)]


def test_the_first_screen_shows_commands_that_exist():
    commands = {line.split()[0] for line in run("--help")[1].splitlines() if line.startswith("  ")}
    code = "\n".join(re.findall(r"^```\n(.*?)^```", README, re.M | re.S))
    shown = set(re.findall(r"^nibble (\w+)", code, re.M))
    assert {"pull", "serve", "list"} <= shown <= commands
