#!/usr/bin/env python3
"""Measures nibble, PyPI tokenizers and PyPI tiktoken on the same texts, one thread each, in one run.

    bench/tokenizer_compare.py --ranks o200k_base.tiktoken [--english FILE] [--seconds N]

nibble is measured by text_bench (ninja -C build/release text_bench), which also makes the texts; the others in this
process, by its CPU time. Their ids must be equal. Prints a Markdown table in MB/s: 10^6 bytes of text a second.
"""
import argparse
import base64
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}
import tiktoken  # noqa: E402
import tokenizers  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import tokenizer_differential as differential  # noqa: E402


def measure(encode, text, budget):
    """(MB/s of the fastest of several runs, ids); or why there are none."""
    best, spent = float("inf"), 0.0
    while spent < budget:
        begin = time.process_time()
        try:
            ids = encode(text)
        except BaseException as failure:  # a panic of Rust's is no Exception
            if type(failure).__name__ != "PanicException":
                raise
            return "overflows its stack" if "StackOverflow" in str(failure) else "panics", None
        took = time.process_time() - begin
        best, spent = min(best, took), spent + took
    return f"{len(text.encode()) / best / 1e6:.1f}", ids


def cpu():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", required=True)
    parser.add_argument("--english", default="")
    parser.add_argument("--bench", default=ROOT / "build/release/src/text/text_bench")
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU time a text and program at least")
    args = parser.parse_args()

    ranks = {}
    for line in Path(args.ranks).read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [args.bench, f"--tokenizer={args.ranks}", "--encoding=o200k_base", f"--english={args.english}", f"--inputs={folder}",
             "--benchmark_format=json", f"--benchmark_min_time={args.seconds}"], stdout=subprocess.PIPE, check=True)
        ours = {entry["name"]: entry for entry in json.loads(done.stdout)["benchmarks"]}
        texts = {path.name: path.read_bytes().decode() for path in Path(folder).iterdir()}
        large = next(path for path in differential.large_tokenizer_jsons(args.ranks, folder) if "gpt_oss" in path.name)
        hugging_face = tokenizers.Tokenizer.from_file(str(large))
        load_begin = time.process_time()
        tokenizers.Tokenizer.from_file(str(large))
        hugging_face_load = time.process_time() - load_begin
    begin = time.process_time()
    encoding = tiktoken.Encoding("o200k", pat_str=differential.split_pattern("gpt_oss"), mergeable_ranks=ranks, special_tokens={})
    tiktoken_load = time.process_time() - begin

    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--exclude=*"], capture_output=True, text=True).stdout.strip()
    print(f"{datetime.date.today()}, {cpu()}, commit {commit}, tokenizers {tokenizers.__version__}, tiktoken {tiktoken.__version__}\n")
    print("| text | bytes | nibble MB/s | tokenizers MB/s | tiktoken MB/s |\n| --- | ---: | ---: | ---: | ---: |")

    def fast_ids(text):
        return hugging_face.encode_batch_fast([text], add_special_tokens=False)[0].ids

    names = [name.split("/")[1] for name in ours if name.startswith("encode/")]
    for name in names:
        text, entry = texts[name], ours["encode/" + name]
        size = len(text.encode())
        hugging, ids = measure(fast_ids, text, args.seconds)
        tik, other_ids = measure(encoding.encode_ordinary, text, args.seconds)
        assert other_ids is None or ids is None or ids == other_ids, name
        assert len(ids or other_ids) == entry["ids"] and size == entry["bytes"], name
        speed = entry["bytes_per_second"] / 1e6
        print(f"| {name.replace('_', ' ')} | {size:,} | {speed:.1f} | {hugging} | {tik} |", flush=True)
    print(f"\nLoading: nibble {ours['load']['cpu_time']:.0f} ms (rank file), tokenizers {1000 * hugging_face_load:.0f} ms "
          f"(tokenizer.json), tiktoken {1000 * tiktoken_load:.0f} ms (ranks already parsed).")
    decode = ours["stream_decode/english"]["bytes_per_second"]
    print(f"Stream decoding, English: {decode / 1e6:.0f} MB/s.")


if __name__ == "__main__":
    main()
