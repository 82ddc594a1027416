#!/usr/bin/env python3
"""Writes tests/data/formats/ml_dtypes.txt: float32 inputs and what PyPI ml_dtypes encodes them to.

A line is the input's bits and the codes as bf16, fp16, e4m3, e2m1 and e8m0, all in hexadecimal. A dash
stands where ml_dtypes' policy is another one than ours by intent: NaN payloads, and what lies past the
largest value of e4m3 (ours saturates), NaN in e2m1 (ours is +6), zero in e8m0 (ours is 2^-127).

usage: make_format_goldens.py OUTPUT
"""
import sys

import ml_dtypes
import numpy as np

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


def main():
    with open(sys.argv[1], "w") as out:
        out.write("# float32 bits: bf16 fp16 e4m3 e2m1 e8m0; written by tools/make_format_goldens.py\n")
        for value in inputs():
            codes = [code(value, dtype) for dtype in DTYPES]
            text = " ".join("-" if c is None else f"{c:02x}" for c in codes)
            out.write(f"{int(value.view(np.uint32)):08x} {text}\n")


if __name__ == "__main__":
    main()
