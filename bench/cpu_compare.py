#!/usr/bin/env python3
"""nibble beside llama.cpp on one machine, on the same weights, in one run.

    bench/cpu_compare.py MODEL_FOLDER MODEL.gguf --peer-library FOLDER --peer-python FOLDER [--nibble PROGRAM]
                         [--quantization q8] [--dtype int8] [--items load decode:0 prefill:512 parallel:8 decode:4096]

MODEL_FOLDER is the Hugging Face checkpoint and MODEL.gguf the same weights for the peer. The peer is
llama-cpp-python (PyPI) over a llama.cpp built for this machine: --peer-python is the folder of the package
llama_cpp, --peer-library that of libllama.so. nibble runs before and after the peer, so that a change of the
machine's mood shows, and with the file in the page cache; the better of its two runs is beside the peer's, and both are
printed. Every figure is the median of the clean steps, those in which the process had its cores.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

STEPS = Path(__file__).with_name("llama_steps.py")
ITEMS = ("load", "decode:0", "prefill:512", "parallel:8", "decode:4096")
DECODED = 24  # tokens of an answer


def nibble_bench(arguments, *options) -> dict:
    command = [arguments.nibble, "bench", arguments.model, "--json", "--quantization", arguments.quantization,
               "--dtype", arguments.dtype, *options]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def nibble_item(arguments, item: str) -> dict:
    kind, _, size = item.partition(":")
    if kind == "load":
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            subprocess.run([arguments.nibble, "generate", arguments.model, "--prompt-ids", "1", "--max-tokens", "1",
                            "--ignore-eos", "--quantization", arguments.quantization, "--dtype", arguments.dtype, "--json"],
                           stdout=subprocess.DEVNULL, check=True)
            times.append(time.perf_counter() - begin)
        return {"first_token_s": statistics.median(times)}
    if kind == "prefill":
        report = nibble_bench(arguments, "--input-len", size, "--output-len", 1, "--concurrency", 1, "--requests", 4,
                              "--max-num-batched-tokens", size)
    elif kind == "parallel":
        report = nibble_bench(arguments, "--depth", 128, "--input-len", 1, "--output-len", DECODED, "--concurrency", size)
    else:
        report = nibble_bench(arguments, "--depth", size, "--input-len", 1, "--output-len", DECODED, "--concurrency", 1)
    run = report["runs"][0]
    which = "prefill" if kind == "prefill" else "decode"
    share = run["multiply_share" if kind == "prefill" else "bandwidth_share"]
    return {"tokens_per_s": run[f"{which}_tokens_per_s"], "clean_steps": run[f"clean_{which}_steps"],
            "steps": run[f"{which}_steps"], "share": share, "peak_memory": report["peak_memory"],
            "anonymous_memory": report["anonymous_memory"], "read_bandwidth": report["read_bandwidth"],
            "peak_flops": report["peak_flops"]}


def read_all(folder: Path):
    """Brings the files into the page cache, which the other program's memory has pushed them out of."""
    for file in sorted(folder.glob("*.safetensors")):
        with open(file, "rb", buffering=0) as opened:
            while opened.read(1 << 26):
                pass


def peer_items(arguments) -> dict[str, dict]:
    environment = os.environ | {"LLAMA_CPP_LIB_PATH": arguments.peer_library, "PYTHONPATH": arguments.peer_python}
    command = [sys.executable, STEPS, arguments.gguf, *arguments.items]
    if arguments.threads:
        command += ["--threads", arguments.threads]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, env=environment, check=True)
    return {row["item"]: row for row in map(json.loads, done.stdout.splitlines())}


def note(text: str):
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("gguf")
    parser.add_argument("--peer-library", required=True)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--nibble", default=str(Path(__file__).parents[1] / "build/release/nibble"))
    parser.add_argument("--quantization", default="none", help="nibble's dense weights: q8 beside a Q8_0 file, none beside bf16")
    parser.add_argument("--dtype", default="auto", help="nibble's activations")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--items", nargs="+", default=ITEMS)
    arguments = parser.parse_args()

    runs = []
    for turn in ("before", "after"):
        if turn == "after":
            note("llama.cpp")
            peer = peer_items(arguments)
        note(f"nibble, {turn}")
        read_all(Path(arguments.model))
        runs.append({item: nibble_item(arguments, item) for item in arguments.items})

    print("| item | nibble before / after | llama.cpp | ratio | clean steps | nibble's share |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for item in arguments.items:
        before, after, other = runs[0][item], runs[1][item], peer[item]
        if item == "load":
            ratio = other["first_token_s"] / min(before["first_token_s"], after["first_token_s"])
            print(f"| first token, s | {before['first_token_s']:.2f} / {after['first_token_s']:.2f} | "
                  f"{other['first_token_s']:.1f} | {ratio:.1f} | | |")
            continue
        best = max(before, after, key=lambda result: result["tokens_per_s"])
        print(f"| {item}, tokens/s | {before['tokens_per_s']:.2f} / {after['tokens_per_s']:.2f} | {other['tokens_per_s']:.2f} | "
              f"{best['tokens_per_s'] / other['tokens_per_s']:.2f} | {best['clean_steps']}/{best['steps']}, "
              f"{other['clean_steps']}/{other['steps']} | {best['share'] * 100:.0f} % |")
    measured = [result for run in runs for result in run.values() if "peak_memory" in result]
    if measured:
        memory = max(result["peak_memory"] for result in measured)
        print(f"| peak memory, GB | {memory / 1e9:.2f} | {peer['end']['peak_memory'] / 1e9:.2f} | "
              f"{peer['end']['peak_memory'] / memory:.2f} | | |")
        print(f"\nRead speed {max(result['read_bandwidth'] for result in measured) / 1e9:.1f} GB/s, multiply rate "
              f"{max(result['peak_flops'] for result in measured) / 1e9:.0f} GFLOP/s; decode's share is of the first, "
              f"prefill's of the second.")


if __name__ == "__main__":
    main()
