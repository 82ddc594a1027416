"""A fast path was logged as on, and was off because a signature had changed."""
import json

import pytest

from nibble_program import BINARY, PARITY, run

EXAMPLE = PARITY / "example"
RUNNERS = ("cpu_avx512_bf16", "cpu_amx", "cpu_avx512_vnni", "cpu_avx512", "cpu_avx2", "cpu_scalar")
STAND_INS = BINARY.parent / "src/plan"


def choices(text):
    return {choice["field"]: (choice["value"], choice["from"]) for choice in json.loads(text)["choices"]}


@pytest.mark.some(2)
@pytest.mark.parametrize("runner", RUNNERS)
def test_what_was_asked_for_runs_or_nothing_does(runner):
    code, out, err = run("bench", EXAMPLE, "--input-len", 4, "--output-len", 2, "--concurrency", 1, "--moe-runner", runner, "--json")
    if code == 0:
        assert choices(out)["moe_runner"] == (runner, "user")
    else:
        assert code == 2 and out == "" and f"{runner}: this CPU lacks" in err and "give auto or one of" in err


def test_what_the_log_says_is_what_the_plan_says_and_what_runs():
    code, planned, _ = run("plan", EXAMPLE, "--json")
    assert code == 0
    code, ran, _ = run("bench", EXAMPLE, "--input-len", 4, "--output-len", 2, "--concurrency", 1, "--json")
    assert code == 0
    ran = choices(ran)
    del ran["mapped_at_load"]
    memory = ("max_model_len", "kv_pages")  # follow what is free at the moment
    texts = ("answer_reader", "call_reader", "format_limits", "sampling")  # a bench reads and writes none
    assert {k: v for k, v in choices(planned).items() if k not in memory + texts} == {k: v for k, v in ran.items() if k not in memory}


# What the library under NCCL's name has become, and what doctor says of it.
CHANGED = {
    "known_bad": "nccl 2.28.3 is known to be bad",
    "too_old": "nccl 2.18.5 is too old",
    "too_new": "nccl 2.30.1 is newer than what nibble was tested with",
    "missing_symbol": "it has no symbol ncclAllReduce",
    "other_signature": "ncclGetVersion wrote no version: its signature is another one",
    "crashes": "it crashed when probed (signal 11)",
    "hangs": "it did not answer within",
}


def doctor_on(tmp_path, way):
    library = STAND_INS / f"libstand_in_{way}.so"
    if not library.exists():
        pytest.skip(f"{library} is built with plan_test")
    (tmp_path / "libnccl.so.2").write_bytes(library.read_bytes())
    code, out, err = run("doctor", "--json", LD_LIBRARY_PATH=str(tmp_path))
    assert code == 0, err
    [check] = [check for check in json.loads(out)["checks"] if check["name"] == "nccl"]
    return check


def test_a_library_that_is_as_it_should_be_is_taken(tmp_path):
    check = doctor_on(tmp_path, "good")
    assert check["status"] == "ok" and check["found"] == "2.28.9"


@pytest.mark.some(2)
@pytest.mark.parametrize("way", CHANGED)
def test_a_library_that_changed_is_not_taken_for_the_one_that_was_known(tmp_path, way):
    check = doctor_on(tmp_path, way)
    assert check["status"] == "warn" and CHANGED[way] in check["found"] and "install NCCL" in check["do"]
