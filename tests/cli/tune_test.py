"""nibble tune: what it measures and writes, what a plan takes from it, and what it refuses."""
import json
import re

import pytest

from nibble_program import ROOT, generate, run
from processes import ends_of, free_address, places, start

QWEN = ROOT / "tests/data/parity/qwen3_moe_bf16"
LINES = ["led", "each", "each_near", "each_late"]
INT8 = ("--device", "cpu", "--threads", 2, "--dtype", "int8")  # its kernels ask for weights as they are told on every CPU


def plan_rows(*options):
    code, out, err = run("plan", "demo", *INT8, "--json", *options)
    assert code == 0, err
    return {choice["field"]: choice for choice in json.loads(out)["choices"]}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """One that was measured here."""
    if plan_rows()["moe_runner"]["value"] == "cpu_scalar":
        pytest.skip("the kernels of this CPU have one form each")
    file = tmp_path_factory.mktemp("tuning") / "here.json"
    code, out, err = run("tune", "demo", *INT8, "--rounds", 1, "--output", file)
    assert code == 0, err
    assert all(name in out for name in LINES) and re.search(r"stays: no other is 2 % faster|% faster than", out)
    assert f"take it with --tuning-table {file}" in out
    return file


def with_value(table, value, file):
    content = json.loads(table.read_text())
    content["entries"][0]["value"] = value
    file.write_text(json.dumps(content))
    return file


@pytest.mark.long
def test_it_measures_every_value_and_says_for_what(table):
    content = json.loads(table.read_text())
    assert content["format"] == "nibble tuning table 1" and "by nibble 0." in content["made"]
    entry, = content["entries"]
    assert entry["field"] == "weight_lines" and sorted(entry["tokens_per_s"]) == sorted(LINES)
    assert all(rate > 0 for rate in entry["tokens_per_s"].values()) and entry["value"] in LINES
    assert "experts of" in entry["model"] and "int8 by cpu_" in entry["model"]


@pytest.mark.long
def test_a_plan_takes_what_was_measured_and_answers_keep_their_bits(table, tmp_path):
    assert plan_rows()["tuning_table"]["value"] == "none"
    asked = ("--prompt", "One day the old clock", "--temperature", 0, "--max-tokens", 8)
    answers = []
    for value in LINES:
        file = with_value(table, value, tmp_path / f"{value}.json")
        rows = plan_rows("--tuning-table", file)
        assert (rows["weight_lines"]["value"], rows["weight_lines"]["from"]) == (value, "rule:lines-measured")
        assert re.fullmatch("[0-9a-f]{16}", rows["tuning_table"]["value"]) and "it has weight_lines" in rows["tuning_table"]["why"]
        answers.append([{name: line[name] for name in line if name != "timings"} for line in generate("demo", *INT8, *asked, "--tuning-table", file)])
    assert answers == answers[:1] * len(LINES)
    others = plan_rows("--tuning-table", table, "--quantization", "q8")
    assert others["weight_lines"]["from"] != "rule:lines-measured" and "it has nothing, so rules decide" in others["tuning_table"]["why"]


def test_entries_of_other_models_are_kept(table, tmp_path):
    file = tmp_path / "more.json"
    file.write_text(table.read_text())
    code, _, err = run("tune", QWEN, *INT8, "--rounds", 1, "--output", file)
    assert code == 0, err
    before, after = (json.loads(each.read_text())["entries"] for each in (table, file))
    assert len(after) == 2 and before[0] in after


@pytest.mark.parametrize("change, says", [
    (lambda content: content.update(machine="Another machine"), 'was made on "Another machine", and this is'),
    (lambda content: content["entries"][0].update(value="lead"), "it can be led, each, each_near, each_late"),
    (lambda content: content["entries"][0].update(field="speed"), "which no table can choose"),
    (lambda content: content.clear(), "is it a table of nibble tune?"),
])
def test_a_table_that_cannot_be_meant_is_refused(table, tmp_path, change, says):
    content, file = json.loads(table.read_text()), tmp_path / "wrong.json"
    change(content)
    file.write_text(json.dumps(content))
    code, out, err = run("generate", "demo", *INT8, "--prompt", "x", "--tuning-table", file)
    assert (code, out) == (2, "") and says in err, err
    code, out, err = run("tune", "demo", *INT8, "--output", file)
    assert code == 2 and json.loads(file.read_text()) == content, err


@pytest.mark.long
def test_what_is_missing_is_told_at_once(tmp_path):
    code, _, err = run("tune", "demo", *INT8)
    assert code == 2 and "no --output FILE given" in err
    code, _, err = run("generate", "demo", *INT8, "--prompt", "x", "--tuning-table", tmp_path / "none.json")
    assert code == 3 and "none.json" in err
    code, _, err = run("tune", "demo", *INT8, "--output", tmp_path / "no/folder/t.json", "--rounds", 1)
    assert code == 1 and "cannot write" in err


def test_processes_with_different_tables_do_not_meet(table, tmp_path):
    files = [with_value(table, value, tmp_path / f"{value}.json") for value in ("led", "each_near")]
    for code, out, err in ends_of([start("generate", "demo", *INT8, "--prompt", "x", "--tp", 2, "--tuning-table", file, *place)
                                   for file, place in zip(files, places(2, free_address()))]):
        assert (code, out) == (2, "") and "process 1 has " in err, err
