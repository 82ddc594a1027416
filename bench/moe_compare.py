#!/usr/bin/env python3
"""nibble's expert layer beside triton_kernels' on one GPU, on MXFP4 weights of gpt-oss's shapes or of another's, in one run.

    bench/moe_compare.py MOE_CUDA_BENCH --peer FOLDER [--experts 128,32] [--tokens 1,2,..] [--json FILE]
                         [--hidden 2880] [--intermediate 2880] [--top-k 4]

FOLDER has the package triton_kernels, as vLLM's wheel carries it in vllm/third_party; PyTorch and Triton must be there.
Both sides are timed by replays of CUDA graphs of at least 24 layer calls over weights that do not fit the cache, each call with
choices of its own: from the router's logits to the sum over a token's experts, bias and clamped SwiGLU included. nibble runs
before and after the peer; the slower of its two runs counts. The peer is set as vLLM sets it on Hopper (no split of K). Its
result for four tokens is held to float32, so that what is timed is what was meant.
"""
import argparse
import dataclasses
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from graph_time import graph_time

LIMIT = 7.0
TOKENS = "1,2,4,8,16,32,64,128,256,512,2048,8192"


@dataclasses.dataclass(frozen=True)
class Shape:
    hidden: int
    intermediate: int
    top_k: int


def nibble(program, shape, experts, tokens):
    """Microseconds by (experts, tokens)."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        subprocess.run([program, "--experts", experts, "--tokens", tokens, "--hidden", str(shape.hidden), "--intermediate",
                        str(shape.intermediate), "--top-k", str(shape.top_k), "--json", found], check=True,
                       stdout=sys.stderr)
        return {(row["experts"], row["tokens"]): row for row in json.loads(found.read_text())}


class Peer:
    def __init__(self, folder, shape, experts):
        sys.path.insert(0, folder)
        import torch
        from triton_kernels import matmul_ogs as products, swiglu
        from triton_kernels.numerics import InFlexData
        from triton_kernels.matmul_ogs_details import opt_flags
        from triton_kernels.routing import routing
        from triton_kernels.tensor import FP4, convert_layout, wrap_torch_tensor
        from triton_kernels.tensor_details import layout

        opt_flags.update_opt_flags_constraints({"split_k": 1})
        self.torch, self.products, self.routing, self.experts = torch, products, routing, experts
        self.shape = shape
        self.activation = products.FusedActivation(
            products.FnSpecs("swiglu", swiglu.swiglu_fn, ("alpha", "limit")), (1.702, LIMIT), 2)
        # So many layers that weights do not fit the cache: at least 5 GB, and of gpt-oss six of 128 experts.
        self.layers, self.raw = [], None
        stored = 3 * experts * shape.hidden * shape.intermediate * 17 / 32
        for index in range(max(6, math.ceil(5e9 / stored))):
            generator = torch.Generator(device="cuda").manual_seed(index)
            layer, raw = [], []
            for rows, columns in ((2 * shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate)):
                codes = torch.randint(0, 256, (experts, rows, columns // 2), dtype=torch.uint8, device="cuda",
                                      generator=generator)
                scales = torch.randint(119, 122, (experts, rows, columns // 32), dtype=torch.uint8, device="cuda",
                                       generator=generator)
                bias = 0.04 * torch.rand(experts, rows, device="cuda", generator=generator) - 0.02
                if index == 0:
                    raw.append((codes, scales, bias))
                value_layout, value_options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
                scale_layout, scale_options = layout.make_default_matmul_mxfp4_w_scale_layout(mx_axis=1, num_warps=8)
                weight = convert_layout(wrap_torch_tensor(codes.transpose(-2, -1), dtype=FP4), value_layout,
                                        **value_options)
                scale = convert_layout(wrap_torch_tensor(scales.transpose(-2, -1)), scale_layout, **scale_options)
                precision = products.PrecisionConfig(weight_scale=scale,
                                                     flex_ctx=products.FlexCtx(rhs_data=InFlexData()))
                layer.append((weight, bias, precision))
            self.layers.append(layer)
            if index == 0:
                self.raw = raw

    def layer(self, index, x, logits, between, out):
        routed, gather, scatter = self.routing(logits, self.shape.top_k, sm_first=False)
        (up, up_bias, up_precision), (down, down_bias, down_precision) = self.layers[index % len(self.layers)]
        multiply = self.products.matmul_ogs
        multiply(x, up, up_bias, routed, gather_indx=gather, precision_config=up_precision, gammas=None,
                 fused_activation=self.activation, y=between)
        multiply(between.view(-1, self.shape.intermediate), down, down_bias, routed, scatter_indx=scatter,
                 precision_config=down_precision, gammas=routed.gate_scal, y=out)
        return out.view(-1, self.shape.hidden)

    def error(self, x, logits, found):
        """Of a result from the first layer, relative to float32."""
        torch = self.torch
        values = [0, .5, 1, 1.5, 2, 3, 4, 6]
        table = torch.tensor(values + [-value for value in values], device="cuda")

        def product(which, expert, row):
            codes, scales, bias = (tensor[expert] for tensor in self.raw[which])
            weights = torch.stack((table[(codes & 15).long()], table[(codes >> 4).long()]), -1).flatten(-2)
            weights = weights * torch.exp2(scales.float() - 127).repeat_interleave(32, -1)
            return weights @ row + bias

        chosen, experts = logits.float().topk(self.shape.top_k, -1)
        expected = torch.zeros_like(found)
        for token, shares in enumerate(torch.softmax(chosen, -1)):
            for share, expert in zip(shares, experts[token]):
                pairs = product(0, expert, x[token].float())
                gate, up = pairs[0::2].clamp(max=LIMIT), pairs[1::2].clamp(-LIMIT, LIMIT)
                expected[token] += share * product(1, expert, gate * torch.sigmoid(1.702 * gate) * (up + 1))
        return ((found - expected).norm() / expected.norm()).item()

    def time(self, tokens):
        torch, layers, shape = self.torch, len(self.layers), self.shape
        calls = layers if tokens >= 2048 else max(24, layers)
        xs = [torch.randn(tokens, shape.hidden, device="cuda", dtype=torch.bfloat16) for _ in range(calls)]
        logits = [torch.randn(tokens, self.experts, device="cuda", dtype=torch.bfloat16) for _ in range(calls)]
        between = torch.empty(1, tokens * shape.top_k, shape.intermediate, device="cuda", dtype=torch.bfloat16)
        out = torch.empty(1, tokens, shape.hidden, device="cuda", dtype=torch.bfloat16)
        stream, error = torch.cuda.Stream(), None
        with torch.cuda.stream(stream):
            for index in range(2):  # compiles
                self.layer(index, xs[index], logits[index], between, out)
            if tokens == 4:
                error = self.error(xs[0], logits[0], self.layer(0, xs[0], logits[0], between, out).float())
            us = graph_time(torch, stream, calls, 11,
                            lambda index: self.layer(index, xs[index], logits[index], between, out))
        distinct = statistics.mean(len(torch.unique(one.float().topk(shape.top_k, -1)[1])) for one in logits)
        return {"us": us, "distinct": distinct, "error": error}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, metavar="MOE_CUDA_BENCH")
    parser.add_argument("--peer", required=True, metavar="FOLDER")
    parser.add_argument("--experts", default="128,32")
    parser.add_argument("--tokens", default=TOKENS)
    parser.add_argument("--hidden", type=int, default=2880)
    parser.add_argument("--intermediate", type=int, default=2880)
    parser.add_argument("--top-k", type=int, default=4)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    shape = Shape(options.hidden, options.intermediate, options.top_k)
    program = options.program.resolve()
    before = nibble(program, shape, options.experts, options.tokens)
    peer = {}
    for experts in map(int, options.experts.split(",")):
        layers = Peer(options.peer, shape, experts)
        for tokens in map(int, options.tokens.split(",")):
            peer[experts, tokens] = layers.time(tokens)
            print(experts, tokens, peer[experts, tokens], file=sys.stderr, flush=True)
        del layers
        sys.modules["torch"].cuda.empty_cache()
    after = nibble(program, shape, options.experts, options.tokens)
    rows = []
    print(f"{'experts':>7} {'tokens':>6} {'nibble, us before / after':>26} {'peer, us':>9} {'ratio':>6} "
          f"{'distinct, nibble and peer':>26}")
    for key, theirs in peer.items():
        own = [run[key]["us_with_router"] for run in (before, after)]
        rows.append({"experts": key[0], "tokens": key[1], "nibble_us": own, "peer_us": round(theirs["us"], 2),
                     "ratio": round(theirs["us"] / max(own), 3),
                     "distinct": [before[key]["distinct"], round(theirs["distinct"], 2)], "peer_error": theirs["error"]})
        print(f"{key[0]:7} {key[1]:6} {own[0]:16.1f} / {own[1]:7.1f} {theirs['us']:9.1f} {rows[-1]['ratio']:6.2f} "
              f"{before[key]['distinct']:18.1f} {theirs['distinct']:7.1f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["ratio"] > 1 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
