"""A layout of weights or scales was another than the kernel's: nothing failed, and the numbers were wrong."""
import json
import shutil
import struct

import pytest

from nibble_program import PARITY, run

EXAMPLE = PARITY / "example"


def reshaped(tmp_path, name, change):
    """The example's checkpoint with one tensor of the same bytes in another shape."""
    folder = tmp_path / "model"
    shutil.copytree(EXAMPLE, folder)
    path = folder / "model.safetensors"
    data = path.read_bytes()
    [size] = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    [tensor] = [tensor for tensor in header if tensor.endswith(name)][:1]
    header[tensor]["shape"] = change(header[tensor]["shape"])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])
    return folder, tensor


@pytest.mark.parametrize("name, change", [
    ("gate_up_proj_scales", lambda shape: [shape[0], shape[2], shape[1]]),
    ("gate_up_proj_blocks", lambda shape: [shape[0], shape[2], shape[1], shape[3]]),
    ("down_proj_blocks", lambda shape: [shape[0], shape[1], shape[2] * shape[3]]),
    ("down_proj_scales", lambda shape: [shape[0] * shape[1], shape[2]]),
])
def test_the_same_bytes_in_another_shape_are_refused_at_load(tmp_path, name, change):
    folder, tensor = reshaped(tmp_path, name, change)
    code, out, err = run("generate", folder, "--prompt-ids", "1,2,3", "--max-tokens", 1)
    assert (code, out) == (3, "") and tensor in err


def test_a_plan_names_the_layout_and_takes_no_other():
    code, out, err = run("plan", PARITY.parent / "models/gpt-oss-120b", "--as", "h200x1", "--json")
    assert code == 0, err
    assert json.loads(out)["experts"]["layout"] == "sm90_granules"
    for runner in ("flashinfer_cutlass", "flashinfer_mxfp4"):  # whose weights are reordered
        code, out, err = run("plan", PARITY.parent / "models/gpt-oss-120b", "--as", "h200x1", "--moe-runner", runner)
        assert code == 2 and "reordered" in err and "sm90_mxfp4" in err
