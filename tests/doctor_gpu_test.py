"""nibble doctor where there is a GPU, which is the emulation of one here."""
import json
import subprocess

import pytest

from nibble_program import BINARY, environment

EMULATED = BINARY.with_name("nibble_emulated")


@pytest.mark.skipif(not EMULATED.exists(), reason="the emulation of a GPU is not built with sanitizers")
def test_every_family_of_kernels_is_held_to_its_reference():
    done = subprocess.run([EMULATED, "doctor", "--json"], capture_output=True, text=True, timeout=300, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    for name in ("sm90_bf16_linear", "sm90_bf16_linear, q, k and v", "sm90_mxfp4", "sm90_attention", "sm90_attention, fp8"):
        assert checks[name]["status"] == "ok" and "near double precision" in checks[name]["found"], checks[name]
    for name in ("add_rms_norm", "route_top_k", "embedding", "sample"):
        assert checks[name]["status"] == "ok" and "the CPU's" in checks[name]["found"], checks[name]
    assert checks["norm_router"]["status"] == "ok" and "the bits of the three" in checks["norm_router"]["found"]
    assert checks["gpu's copies"]["status"] == "ok" and checks["gpu's copies"]["found"].startswith("GB/s")
    # Whatever drives this machine's GPUs knows nothing of an emulated one.
    assert checks["gpu's health"]["status"] == "skip" and "libnvidia-ml.so.1" in checks["gpu's health"]["found"]


@pytest.mark.skipif(not EMULATED.exists(), reason="the emulation of a GPU is not built with sanitizers")
def test_gpus_are_held_to_what_they_write_into_each_others_memory():
    done = subprocess.run([EMULATED, "doctor", "--json"], capture_output=True, text=True, timeout=300, env=environment() | {"EMULATED_GPUS": "2"})
    assert done.returncode == 0, done.stdout + done.stderr
    [peers] = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "gpus together"]
    assert peers["status"] == "ok" and peers["found"].startswith("2 GPUs write into each other's memory what arrives there"), peers
