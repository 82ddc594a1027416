#!/usr/bin/env python3
"""nibble bench --url beside a client that is not ours: OpenAI's Python SDK, the same closed loop on the same server.

    bench/url_compare.py [--url URL] [--concurrency 1,4] [--requests 16] [--input-len 64] [--output-len 64]

Without --url it starts `nibble serve demo` on one thread, so that on two CPUs the clients have one. The SDK's
client is one Python process, whose own time a chunk is in its figures.
"""
import argparse
import asyncio
import json
import math
import random
import signal
import subprocess
import time
from pathlib import Path

import openai

NIBBLE = Path(__file__).resolve().parents[1] / "build/release/nibble"
WORDS = "the and was one day had said her his big little they went with saw that not but very happy play find help good home tree".split()


def percentiles(samples):
    ranked = sorted(samples)
    return {f"p{share}": ranked[max(0, math.ceil(share / 100 * len(ranked)) - 1)] for share in (50, 90, 99)}


async def sdk_level(url, concurrency, args):
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)
    model = (await client.models.list()).data[0].id
    left, first, between, tokens = list(range(args.requests)), [], [], 0

    async def one(number):
        nonlocal tokens
        words = random.Random(number).choices(WORDS, k=args.input_len)
        begin = last = time.perf_counter()
        chunks = 0
        stream = await client.completions.create(model=model, prompt=" ".join(words), max_tokens=args.output_len, temperature=0, stream=True,
                                                 stream_options={"include_usage": True}, extra_body={"ignore_eos": True})
        async for chunk in stream:
            if chunk.usage:
                tokens += chunk.usage.completion_tokens
            if not chunk.choices or not chunk.choices[0].text:
                continue
            now = time.perf_counter()
            (between if chunks else first).append(now - last)
            chunks, last = chunks + 1, now

    async def worker():
        while left:
            await one(left.pop())

    await one(-1)  # imports and the connection
    first.clear(), between.clear()
    tokens = 0
    begin = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    took = time.perf_counter() - begin
    return {"concurrency": concurrency, "output_tokens_per_s": tokens / took, "ttft_s": percentiles(first), "itl_s": percentiles(between)}


def nibble_level(url, concurrency, args):
    done = subprocess.run([NIBBLE, "bench", "--url", url, "--concurrency", str(concurrency), "--requests", str(args.requests), "--input-len", str(args.input_len),
                           "--output-len", str(args.output_len), "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["runs"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url")
    parser.add_argument("--concurrency", default="1,4")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=64)
    args = parser.parse_args()
    server, url = None, args.url
    if not url:
        server = subprocess.Popen([NIBBLE, "serve", "demo", "--port", "0", "--threads", "1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        url = server.stdout.readline().strip()
    try:
        print(f"{'client':<12} {'in flight':>9} {'tokens/s':>9} {'ttft p50':>9} {'p99':>8} {'itl p50':>8} {'p99 ms':>8}")
        for concurrency in map(int, args.concurrency.split(",")):
            for name, found in (("nibble bench", nibble_level(url, concurrency, args)), ("openai SDK", asyncio.run(sdk_level(url, concurrency, args)))):
                print(f"{name:<12} {concurrency:>9} {found['output_tokens_per_s']:>9.1f} {found['ttft_s']['p50'] * 1e3:>9.1f} {found['ttft_s']['p99'] * 1e3:>8.1f}"
                      f" {found['itl_s']['p50'] * 1e3:>8.2f} {found['itl_s']['p99'] * 1e3:>8.2f}", flush=True)
    finally:
        if server:
            server.send_signal(signal.SIGTERM)
            server.wait()


if __name__ == "__main__":
    main()
