#!/usr/bin/env python3
"""Makes tests/data/gated_delta/mixer.f32: the mixer of Qwen3-Next as transformers computes it in float32, on random inputs.

    python3 -m venv /tmp/v && /tmp/v/bin/pip install torch==2.15.0 transformers==5.23.0 numpy
    /tmp/v/bin/python tools/goldens/gated_delta.py

The file is nothing but little-endian float32, one array after the other in the order in which mixer() returns them; gated_delta_golden_test.cpp
reads it by the same shapes.
"""
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers.models.qwen3_next.modeling_qwen3_next import (Qwen3NextRMSNormGated, causal_conv1d_fn,
                                                                 torch_recurrent_gated_delta_rule)

ROOT = Path(__file__).resolve().parents[2]
ROWS, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, TAPS, EPS = 131, 2, 4, 16, 12, 4, 1e-6
KEYS, VALUES = KEY_HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM
CHANNELS = 2 * KEYS + VALUES


def mixer():
    torch.manual_seed(42)
    x = torch.randn(ROWS, CHANNELS)
    conv = 0.5 * torch.randn(CHANNELS, TAPS)
    a_log, dt_bias = torch.empty(VALUE_HEADS).uniform_(0.01, 16).log(), torch.randn(VALUE_HEADS)
    b, a, z = 2 * torch.randn(ROWS, VALUE_HEADS), 3 * torch.randn(ROWS, VALUE_HEADS) - 4, torch.randn(ROWS, VALUES)
    norm = Qwen3NextRMSNormGated(VALUE_DIM, eps=EPS)
    norm.weight.data = torch.randn(VALUE_DIM)

    convolved = causal_conv1d_fn(x.T[None], conv, None, activation="silu")[0].T.contiguous()
    q, k, v = convolved[None].split((KEYS, KEYS, VALUES), dim=-1)
    g = -a_log.exp() * F.softplus(a + dt_bias)
    out, _ = torch_recurrent_gated_delta_rule(q.view(1, ROWS, KEY_HEADS, KEY_DIM), k.view(1, ROWS, KEY_HEADS, KEY_DIM),
                                              v.view(1, ROWS, VALUE_HEADS, VALUE_DIM), g=g[None], beta=b.sigmoid()[None],
                                              use_qk_l2norm_in_kernel=True)
    normed = norm(out.reshape(-1, VALUE_DIM), z.reshape(-1, VALUE_DIM))
    return {"x": x, "conv": conv, "a_log": a_log, "dt_bias": dt_bias, "b": b, "a": a, "z": z, "norm": norm.weight.data,
            "convolved": convolved, "out": out, "normed": normed}


if __name__ == "__main__":
    arrays = mixer()
    path = ROOT / "tests/data/gated_delta/mixer.f32"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(each.detach().contiguous().numpy().astype("<f4").tobytes() for each in arrays.values()))
    for name, each in arrays.items():
        print(f"{name:10s} {tuple(each.shape)}")
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")
