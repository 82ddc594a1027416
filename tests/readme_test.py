"""The README's figures are what the program prints."""
import json
import re

import pytest

from nibble_program import ROOT, run

README = (ROOT / "README.md").read_text()
ROWS = {name: figures for name, *figures in
        re.findall(r"^\| `openai/([\w-]+)` \| ([\d.]+) GB \| ([\d.]+) GB \| ([\d.]+) GB \|$", README, re.M)}


def planned(model, *machine):
    """Bytes of weights and of all, for one conversation of 8,192 tokens."""
    code, out, err = run("plan", ROOT / "tests/data/models" / model, "--as", *machine, "--max-num-seqs", 1,
                         "--max-model-len", 8192, "--json")
    assert code == 0, err
    memory = json.loads(out)["memory"]
    return memory["weights"], memory["total"]


def test_the_readme_has_a_row_for_each_published_model():
    assert sorted(ROWS) == ["gpt-oss-120b", "gpt-oss-20b"]


@pytest.mark.parametrize("model, gpu", [("gpt-oss-20b", "h100x1"), ("gpt-oss-120b", "h200x1")])
def test_the_memory_that_a_model_needs_is_what_plan_prints(model, gpu):
    weights, on_cpu = planned(model, "h100x1", "--device", "cpu")
    assert planned(model, gpu)[0] == weights
    assert ROWS[model] == [f"{size / 1e9:.1f}" for size in (weights, on_cpu, planned(model, gpu)[1])]


def test_the_first_screen_shows_commands_that_exist():
    commands = {line.split()[0] for line in run("--help")[1].splitlines() if line.startswith("  ")}
    code = "\n".join(re.findall(r"^```\n(.*?)^```", README, re.M | re.S))
    shown = set(re.findall(r"^nibble (\w+)", code, re.M))
    assert {"pull", "serve", "list"} <= shown <= commands
