"""`nibble doctor` as its user and its scripts read it."""
import json
import time

from nibble_program import PARITY, run

EXAMPLE = PARITY / "example"


def test_a_line_a_check_and_every_kernel_in_it():
    begin = time.monotonic()
    code, out, err = run("doctor")
    assert (code, err) == (0, ""), out
    assert time.monotonic() - begin < 60, "some seconds on a machine of its own"
    lines = out.splitlines()
    assert all(line.split()[0] in ("ok", "warn", "skip") for line in lines)
    for family in ("bfloat16 weights", "mxfp4 weights", "q8 weights", "expert layer", "attention over bf16", "norms"):
        assert any(family in line and line.startswith(("ok", "skip")) for line in lines), family
    for name in ("cpu", "memory", "gpu", "nccl", "cuda_driver"):
        assert any(line.split()[1] == name for line in lines), name


def test_json_and_a_model():
    code, out, err = run("doctor", EXAMPLE, "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    checks = {check["name"]: check for check in report["checks"]}
    assert report["failed"] == 0
    assert checks["alone against batch"]["status"] == checks["whole against chunked prefill"]["status"] == "ok"
    assert checks["graph against eager"]["status"] == "skip"
    assert any("at the model's shapes" in check["found"] for check in report["checks"])


def test_what_is_wrong_fails_and_says_so():
    code, out, err = run("doctor", "/nowhere")
    assert code == 1 and "FAIL" in out and "1 check failed" in err
    code, out, err = run("doctor", EXAMPLE, "--max-model-len", 200000)
    assert code == 1 and "the model holds" in out
