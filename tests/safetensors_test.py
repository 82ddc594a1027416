"""nibble's safetensors reader against the reference implementation: it reads what that one writes, and on
damaged files the two agree about what is a file at all."""
import ctypes
import json
import math
import random
import struct

import pytest
import safetensors

from nibble_program import run

DTYPES = {"bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8,
          "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "float8_e4m3fn": 1,
          "float8_e5m2": 1}
OURS = {"uint8": "u8", "int8": "i8", "uint16": "u16", "int16": "i16", "uint32": "u32", "int32": "i32",
        "uint64": "u64", "int64": "i64", "float16": "f16", "bfloat16": "bf16", "float32": "f32",
        "float64": "f64", "float8_e4m3fn": "f8_e4m3", "float8_e5m2": "f8_e5m2", "bool": "bool"}


def inspect(folder, file):
    (folder / "model.safetensors").write_bytes(file)
    _, out, _ = run("inspect", folder, "--json")
    report = json.loads(out)
    about_file = [p for p in report["problems"] if "model.safetensors" in p]
    return report, about_file


def written(seed):
    """A file as the reference writes it, and what is in it: dtype, shape, bytes by name."""
    rng = random.Random(seed)
    tensors, specs, alive = {}, {}, []
    for i in range(rng.randrange(1, 12)):
        dtype = rng.choice(list(DTYPES))
        shape = [rng.randrange(0, 5) for _ in range(rng.randrange(0, 4))]
        data = rng.randbytes(math.prod(shape) * DTYPES[dtype])
        buffer = ctypes.create_string_buffer(data, max(1, len(data)))
        alive.append(buffer)  # a spec holds its address alone
        name = f"layer.{i}.{'w' * rng.randrange(1, 9)}"
        tensors[name] = (OURS[dtype], shape, len(data))
        specs[name] = safetensors.TensorSpec(dtype=dtype, shape=shape, data_ptr=ctypes.addressof(buffer),
                                             data_len=len(data))
    return bytes(safetensors.serialize(specs, {"format": "pt"})), tensors


def reference_accepts(file):
    try:
        safetensors.deserialize(file)
        return True
    except Exception:
        return False


@pytest.mark.parametrize("seed", range(10))
def test_reads_what_the_reference_writes(tmp_path, seed):
    file, tensors = written(seed)
    report, about_file = inspect(tmp_path, file)
    assert about_file == []
    assert {t["name"]: (t["format"], t["shape"], t["bytes"]) for t in report["tensors"]} == tensors


def damaged(seed):
    """A file with one number of its header changed, or cut, or grown."""
    rng = random.Random(seed)
    file, _ = written(seed)
    kind = rng.randrange(5)
    if kind == 0:
        return file[:rng.randrange(len(file))]
    if kind == 1:
        return file + bytes(rng.randrange(1, 9))
    (length,) = struct.unpack("<Q", file[:8])
    if kind == 2:
        return struct.pack("<Q", max(0, length + rng.choice([-8, -1, 1, 8, 2**40]))) + file[8:]
    header = json.loads(file[8:8 + length])
    name = rng.choice([n for n in header if n != "__metadata__"])
    if kind == 3:
        header[name]["data_offsets"][rng.randrange(2)] += rng.choice([-4, -1, 1, 4, 2**62])
    else:
        header[name]["shape"] = [rng.randrange(0, 5), rng.choice([1, 2, 2**40, 2**63 - 1])]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + file[8 + length:]


def test_agrees_with_the_reference_about_damaged_files(tmp_path):
    differences, refused = [], 0
    for seed in range(150):
        file = damaged(seed)
        _, about_file = inspect(tmp_path, file)
        accepted = reference_accepts(file)
        refused += not accepted
        if accepted != (about_file == []):
            differences.append((seed, accepted, about_file))
    assert differences == []
    assert 100 < refused < 150
