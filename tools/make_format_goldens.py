#!/usr/bin/env python3
"""Writes tests/data/formats: float32 inputs and what PyPI ml_dtypes makes of them. Where PyPI torch is installed and
has the same type, its casts are asked too and have to agree.

ml_dtypes.txt: single values

A line is the input's bits and the codes as bf16, fp16, e4m3, e2m1 and e8m0, all in hexadecimal. A dash
stands where ml_dtypes' policy is another one than ours by intent: NaN payloads, and what lies past the
largest value of e4m3 (ours saturates), NaN in e2m1 (ours is +6), zero in e8m0 (ours is 2^-127).

blocks.txt: blocks of values in a format. A line is the format, a global scale (nvfp4; else 0), the values, the scale
and the codes as stored; the arithmetic around the casts is numpy's in float32.

usage: make_format_goldens.py FOLDER
"""
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

try:
    import torch
except ImportError:
    torch = None

DTYPES = [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn,
          ml_dtypes.float8_e8m0fnu]


def inputs():
    random = np.random.default_rng(7)
    values = [0.0, -0.0, np.inf, -np.inf, 1e39, 65504, 65519.996, 65520, 448, 463.99997, 464, 6, 6.0001, 2.0**-127]
    for tie in [.25, .75, 1.25, 1.75, 2.5, 3.5, 5.0]:
        values += [tie, -tie, np.nextafter(np.float32(tie), np.float32(0)), np.nextafter(np.float32(tie), np.float32(9))]
    values += list(np.exp2(random.uniform(-14, 9, 300)) * random.choice([-1, 1], 300))
    with np.errstate(over="ignore"):
        values = np.array(values).astype(np.float32)
    anything = random.integers(0, 2**32, 300, dtype=np.uint32).view(np.float32)
    return np.concatenate([values, anything])


def code(value, dtype):
    if np.isnan(value):
        return None if dtype is not ml_dtypes.float8_e8m0fnu else 0xff
    if dtype is ml_dtypes.float8_e4m3fn and abs(value) > 464:
        return None
    if dtype is ml_dtypes.float8_e8m0fnu and value == 0:
        return None
    # ml_dtypes has no saturation in e8m0 either: past 1.5 * 2^127 it says NaN.
    if dtype is ml_dtypes.float8_e8m0fnu and value >= 1.5 * 2.0**127 and np.isfinite(value):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        encoded = np.array([value]).astype(dtype)
    return int(encoded.view(np.uint16 if encoded.dtype.itemsize == 2 else np.uint8)[0])


def agreed(values, dtype):
    """Codes of values by ml_dtypes; torch, if it is there, has to say the same."""
    codes = np.asarray(values, np.float32).astype(dtype).view(np.uint8)
    theirs = {ml_dtypes.float8_e4m3fn: "float8_e4m3fn", ml_dtypes.float8_e8m0fnu: "float8_e8m0fnu"}.get(dtype)
    if torch and theirs and hasattr(torch, theirs):
        other = torch.from_numpy(np.asarray(values, np.float32).copy()).to(getattr(torch, theirs))
        assert (other.view(torch.uint8).numpy() == codes).all(), (values, dtype)
    return codes


def e2m1(values):
    """Two codes a byte, the even index low. ml_dtypes saturates at 6."""
    codes = agreed(values, ml_dtypes.float4_e2m1fn)
    return codes[0::2] | codes[1::2] << 4


def e4m3(values):
    return agreed(np.clip(values, np.float32(-448), np.float32(448)), ml_dtypes.float8_e4m3fn)


def power_of_two(amax, largest, up):
    """The E8M0 byte that holds amax, whose largest code is `largest`; or by the floor of its logarithm."""
    exponent = np.floor(np.log2(np.float64(amax))) - np.floor(np.log2(largest))
    if up and float(amax) > largest * 2.0 ** exponent:
        exponent += 1
    return int(agreed([np.float32(2.0 ** exponent)], ml_dtypes.float8_e8m0fnu)[0])


def block_lines():
    random = np.random.default_rng(11)
    for _ in range(64):
        spread = np.float32(2.0 ** random.integers(-12, 6))
        values = (random.standard_normal(64).astype(np.float32) * spread).astype(np.float32)
        block, half = values[:32], values[:16]
        for name, up in (("mxfp4_up", True), ("mxfp4_floor", False)):
            byte = power_of_two(np.abs(block).max(), 6.0, up)
            yield name, np.float32(0), block, byte, e2m1(block * np.float32(2.0 ** (127 - byte)))
        byte = power_of_two(np.abs(block).max(), 448.0, True)
        yield "mxfp8", np.float32(0), block, byte, e4m3(block * np.float32(2.0 ** (127 - byte)))
        largest = np.float32(448 * 6) / np.abs(values).max()
        scale = e4m3([largest * np.abs(half).max() / np.float32(6)])
        factor = largest / scale.view(ml_dtypes.float8_e4m3fn).astype(np.float32)[0]
        yield "nvfp4", largest, half, int(scale[0]), e2m1(half * factor)
        scale = np.float32(np.abs(values).max() / np.float32(448))
        yield "fp8_block", np.float32(0), values, int(scale.view(np.uint32)), e4m3(values / scale)


def write_blocks(out):
    out.write("# format, global scale, values, scale, codes; written by tools/make_format_goldens.py\n")
    for name, factor, values, scale, codes in block_lines():
        numbers = [int(np.float32(factor).view(np.uint32)), *map(int, values.view(np.uint32)), scale, *map(int, codes)]
        out.write(name + " " + " ".join(f"{number:x}" for number in numbers) + "\n")


def main():
    folder = Path(sys.argv[1])
    with open(folder / "blocks.txt", "w") as out:
        write_blocks(out)
    with open(folder / "ml_dtypes.txt", "w") as out:
        out.write("# float32 bits: bf16 fp16 e4m3 e2m1 e8m0; written by tools/make_format_goldens.py\n")
        for value in inputs():
            codes = [code(value, dtype) for dtype in DTYPES]
            text = " ".join("-" if c is None else f"{c:02x}" for c in codes)
            out.write(f"{int(value.view(np.uint32)):08x} {text}\n")


if __name__ == "__main__":
    main()
