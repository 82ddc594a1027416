"""nibble doctor where there are GPUs, which are two emulated ones here."""
import json
import subprocess

import pytest

from nibble_program import BINARY, environment

EMULATED = BINARY.with_name("nibble_emulated")
pytestmark = pytest.mark.skipif(not EMULATED.exists(), reason="the emulation of a GPU is not built with sanitizers")


@pytest.fixture(scope="module")
def checks():
    """What it found, by name; some for each GPU."""
    done = subprocess.run([EMULATED, "doctor", "--json"], capture_output=True, text=True, timeout=300,
                          env=environment() | {"EMULATED_GPUS": "2"})
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for check in json.loads(done.stdout)["checks"]:
        found.setdefault(check["name"], []).append(check)
    return found


def test_every_family_of_kernels_is_held_to_its_reference(checks):
    def found(name, status="ok"):
        assert all(check["status"] == status for check in checks[name]), checks[name]
        return [check["found"] for check in checks[name]]

    for name in ("sm90_bf16_linear", "sm90_bf16_linear, q, k and v", "sm90_mxfp4", "sm90_nvfp4", "sm90_int4",
                 "sm90_blocks, rounded to fp8", "latent_attention", "sm90_attention", "sm90_attention, fp8",
                 "sm90_blocks, fp8", "sm90_blocks, nvfp4", "sm90_blocks, experts in fp8", "sm90_blocks, experts in bf16"):
        assert all("near double precision" in each for each in found(name)), checks[name]
    for name in ("add_rms_norm", "route_top_k", "embedding", "sample", "gated_delta"):
        assert all("the CPU's" in each for each in found(name)), checks[name]
    assert all("the bits of the three" in each for each in found("norm_router"))
    assert all("for all blocks of the" in each for each in found("gpu's places"))
    assert all(each.startswith("GB/s") for each in found("gpu's copies"))
    # Whatever drives this machine's GPUs knows nothing of an emulated one.
    assert all("libnvidia-ml.so.1" in each for each in found("gpu's health", "skip"))


def test_gpus_are_held_to_what_they_write_into_each_others_memory(checks):
    [peers] = checks["gpus together"]
    assert peers["status"] == "ok" and peers["found"].startswith("2 GPUs write into each other's memory what arrives there"), peers
    [exchange] = checks["token exchange"]
    assert exchange["status"] == "ok" and exchange["found"].startswith("8 rows of each reach the experts that they chose"), exchange


def test_nccl_is_held_to_what_it_merges(checks):
    [nccl] = checks["NCCL"]
    assert nccl["status"] == "ok" and nccl["found"].startswith("each of 2 GPUs has what the others had"), nccl
