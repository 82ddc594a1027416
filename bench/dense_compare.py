#!/usr/bin/env python3
"""nibble's dense products beside cuBLAS's, as PyTorch calls it, on one GPU, bfloat16 of gpt-oss's shapes, in one run.

    bench/dense_compare.py LINEAR_CUDA_BENCH [--tokens 1,8,64,..] [--json FILE]

Both sides are timed by replays of CUDA graphs over weights that do not fit the cache, with random weights and inputs of the
same spread. nibble runs before and after the peer; the slower of its two runs counts. nibble's q, k and v have bias, rotary embedding
and the writing of keys and values in them and its other products a bias; the peer's are the products alone, and its order
of sums depends on how many tokens there are.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from graph_time import graph_time

# As linear_cuda_bench has them: rows, columns, layers, most tokens.
PRODUCTS = {"qkv": (5120, 2880, 36, 8192), "o": (2880, 4096, 36, 8192), "router": (128, 2880, 36, 8192),
            "lm_head": (201088, 2880, 2, 128)}
TOKENS = "1,2,4,8,16,32,64,128,256,512,2048,8192"


def nibble(program, tokens):
    """The row by (product, tokens); where two paths ran, the one that is taken."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        subprocess.run([program, "--tokens", tokens, "--json", found], check=True, stdout=sys.stderr)
        rows = {}
        for row in json.loads(found.read_text()):
            key = row["product"], row["tokens"]
            if key not in rows or row["us"] < rows[key]["us"]:
                rows[key] = row
        return rows


def random_bits(torch, rows, columns, seed):
    """Signs and mantissas random, magnitudes from 2^-8 to 2^-4, as nibble's benchmark has them."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    bits = torch.randint(0, 1 << 16, (rows, columns), dtype=torch.int32, device="cuda", generator=generator)
    return ((bits & 0x81ff) + 0x3b80).to(torch.uint16).view(torch.bfloat16)


def peer(torch, weights, tokens):
    """Microseconds a product."""
    count, rows, columns = weights.shape
    x = random_bits(torch, tokens, columns, 7)
    y = torch.empty(tokens, rows, dtype=torch.bfloat16, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.mm(x, weights[0].t(), out=y)
        return graph_time(torch, stream, count, 25 if tokens <= 512 else 7,
                          lambda layer: torch.mm(x, weights[layer].t(), out=y))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, metavar="LINEAR_CUDA_BENCH")
    parser.add_argument("--tokens", default=TOKENS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    program = options.program.resolve()
    before = nibble(program, options.tokens)
    import torch
    theirs = {}
    for product, (rows, columns, layers, most) in PRODUCTS.items():
        weights = torch.stack([random_bits(torch, rows, columns, seed) for seed in range(layers)])
        for tokens in map(int, options.tokens.split(",")):
            if tokens <= most:
                theirs[product, tokens] = peer(torch, weights, tokens)
        del weights
        torch.cuda.empty_cache()
    after = nibble(program, options.tokens)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
    print(f"{'product':>7} {'tokens':>6} {'nibble, us before / after':>26} {'cuBLAS, us':>10} {'ratio':>6} "
          f"{'TFLOP/s':>7} {'cuBLAS':>7}")
    found = []
    for (product, tokens), us in theirs.items():
        rows, columns, _, _ = PRODUCTS[product]
        own = [run[product, tokens]["us"] for run in (before, after)]
        flops = 2e-6 * rows * columns * tokens
        found.append({"product": product, "tokens": tokens, "nibble_us": own, "peer_us": round(us, 2),
                      "ratio": round(us / max(own), 3)})
        print(f"{product:>7} {tokens:6} {own[0]:16.1f} / {own[1]:7.1f} {us:10.1f} {us / max(own):6.2f} "
              f"{flops / max(own):7.0f} {flops / us:7.0f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
