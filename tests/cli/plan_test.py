"""`nibble plan`: what it prints for models and machines that are not here, and what it refuses."""
import json

import pytest

from nibble_program import ROOT, run
from plan_cases import CASES, MODELS, PLANS, text_of

OSS = f"{ROOT}/{MODELS}/gpt-oss-120b"


def plan(*arguments):
    code, out, err = run("plan", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def chosen(of):
    return {choice["field"]: (choice["value"], choice["from"]) for choice in of["choices"]}


@pytest.mark.parametrize("name", CASES)
def test_prints_what_is_committed(name):
    text = text_of(run, CASES[name])
    assert text == (PLANS / f"{name}.txt").read_text(), "if this is meant: tools/goldens/plans.py"
    assert max(len(line) for line in text.splitlines()[1:]) <= 100 or name.startswith("refused")


def test_no_plan_is_committed_that_nothing_prints():
    assert {path.stem for path in PLANS.glob("*.txt")} == set(CASES)


def test_json_has_the_promised_members():
    one = plan(OSS, "--as", "h200x4", "--tp", 4)
    assert {"model", "machine", "choices", "memory", "bound"} <= set(one)
    assert {"weights", "kv", "workspace", "graphs", "total", "kv_tokens"} <= set(one["memory"])
    assert set(one["bound"]["decode_tokens_per_s"]) == {"1", "8", "32", "128"}
    assert one["bound"]["prefill_tokens_per_s"] > 0 and one["bound"]["bytes_per_token"] > 4.9e9
    for choice in one["choices"]:
        assert choice["from"] in ("user", "default") or choice["from"].startswith("rule:")
        assert choice["why"] and all(rejected["why"] for rejected in choice["rejected"])
    assert chosen(one)["tp"] == ("4", "user")
    assert chosen(one)["moe_runner"] == ("sm90_mxfp4", "default")
    memory = one["memory"]
    assert memory["total"] == memory["weights"] + memory["kv"] + memory["workspace"] + memory["graphs"] <= memory["budget"]


def test_a_machine_of_a_file_is_the_machine(tmp_path):
    code, out, err = run("plan", "--machine-json", "--as", "h200x4")
    assert (code, err) == (0, "")
    (tmp_path / "m.json").write_text(out)
    by_name, by_file = plan(OSS, "--as", "h200x4"), plan(OSS, "--as", tmp_path / "m.json")
    assert by_name == by_file
    (tmp_path / "plan.json").write_text(json.dumps(by_name))
    assert plan(OSS, "--as", tmp_path / "plan.json") == by_name, "a whole plan's machine will do"


def test_this_machine_is_measured():
    code, out, err = run("plan", "demo", "--json")
    assert (code, err) == (0, "")
    one = json.loads(out)
    assert one["machine"]["cpu"]["read_bandwidth"] > 1e8 and not one["machine"]["declared"]
    assert one["not_built"] == [] and one["bound"]["decode_tokens_per_s"]["1"] > 0


@pytest.mark.parametrize("arguments, words", [
    (["--as", "h200x9"], ["--as", "h200xN"]),
    (["--as", "h200x4", "--tp", "8"], ["--tp 8", "there are 4 GPUs", "give 1, 2, 4"]),
    (["--as", "cpu", "--device", "cuda"], ["--device cuda", "no GPU"]),
    (["--as", "h200x1", "--moe-runner", "marlin"], ["marlin", "vLLM", "give auto"]),
    (["--as", "h200x1", "--moe-runner", "sm90_mxfp5"], ["nearest is sm90_mxfp4", "give auto or one of"]),
    (["--as", "h200x1", "--moe-a2a-backend", "deepep"], ["--moe-a2a-backend normal", "--ep 2 or more"]),
    (["--as", "h200x1", "--max-model-len", "200000"], ["--max-model-len 200000", "give at most 131072"]),
    (["--as", "nowhere.json"], ["nowhere.json"]),
])
def test_what_cannot_be_honoured_is_refused(arguments, words):
    code, out, err = run("plan", OSS, *arguments)
    assert out == "" and err.startswith("error: ") and code in (2, 3), err
    for word in words:
        assert word in err


def test_every_pair_is_in_the_matrix():
    code, out, err = run("plan", OSS, "--as", "h200x4", "--tp", 4, "--dp", 4, "--matrix", "--json")
    assert (code, err) == (0, "")
    pairs = {(pair["moe_runner"], pair["token_exchange"]): pair for pair in json.loads(out)["pairs"]}
    runners, exchanges = {runner for runner, _ in pairs}, {exchange for _, exchange in pairs}
    assert {"auto", "triton", "triton_kernels", "flashinfer_cutlass", "flashinfer_mxfp4", "flashinfer_trtllm", "flashinfer_cutedsl",
            "deep_gemm", "marlin", "cutlass", "sm90_mxfp4", "cpu_scalar"} <= runners
    assert {"none", "normal", "low_latency", "deepep", "flashinfer", "mooncake"} <= exchanges
    assert len(pairs) == len(runners) * len(exchanges)
    for pair in pairs.values():
        assert pair["verdict"] in ("runs here", "elsewhere", "not built", "refused") and pair["why"]
    assert pairs["sm90_mxfp4", "deepep"]["verdict"] == "not built"
    assert pairs["flashinfer_cutedsl", "deepep"]["verdict"] == "refused"
    assert pairs["cpu_scalar", "normal"]["verdict"] == "elsewhere" or pairs["cpu_scalar", "normal"]["verdict"] == "refused"
