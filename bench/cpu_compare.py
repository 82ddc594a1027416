#!/usr/bin/env python3
"""nibble beside llama.cpp on one machine, on the same weights, in one run.

    bench/cpu_compare.py MODEL_FOLDER MODEL.gguf --peer-library FOLDER --peer-python FOLDER [--nibble PROGRAM]
                         [--quantization q8] [--dtype int8] [--items load decode:0 prefill:512 parallel:8 decode:4096]
                         [--kernels cpu_avx512_vnni --peer-preload without_tiles.so]

MODEL_FOLDER is the Hugging Face checkpoint and MODEL.gguf the same weights for the peer; random_pair.py writes both. The
peer is llama-cpp-python (PyPI) over a llama.cpp built for this machine: --peer-python is the folder of the package
llama_cpp, --peer-library that of libllama.so. On a processor with AMX, --kernels and --peer-preload (without_tiles.c)
compare what both do without it.

The two programs take short turns, item by item: nibble, the peer, nibble, the peer, ... (--turns of each). A shared machine's
memory changes its speed within seconds, so both meet the same weather. The weights of both do not fit a small machine at
once, so each turn starts its program anew with the file in the page cache. A figure is the mean over turns on either side; the range of
the turns' ratios stands beside the ratio of the means. A turn's figure is the median of its clean steps, those in which the process had
its cores. The peer loads as it does by default, by mapping the file; what --no-mmap changes in time and memory is measured too.
"""
import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

STEPS = Path(__file__).with_name("llama_steps.py")
ITEMS = ("load", "decode:0", "prefill:512", "parallel:8", "decode:4096")
DECODED = 64  # tokens of an answer
DECODED_ALONE = 256  # of one sequence: long enough that the median step meets experts whose pages are mapped


def nibble_bench(arguments, *options) -> dict:
    command = [arguments.nibble, "bench", arguments.model, "--json", "--quantization", arguments.quantization,
               "--dtype", arguments.dtype, "--moe-runner-backend", arguments.kernels, *options]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def nibble_item(arguments, item: str) -> dict:
    kind, _, size = item.partition(":")
    if kind == "load":
        begin = time.perf_counter()
        subprocess.run([arguments.nibble, "generate", arguments.model, "--prompt-ids", "1", "--max-tokens", "1",
                        "--ignore-eos", "--quantization", arguments.quantization, "--dtype", arguments.dtype,
                        "--moe-runner-backend", arguments.kernels, "--json"],
                       stdout=subprocess.DEVNULL, check=True)
        return {"first_token_s": time.perf_counter() - begin}
    if kind == "prefill":
        report = nibble_bench(arguments, "--input-len", size, "--output-len", 1, "--concurrency", 1, "--requests", 4,
                              "--max-num-batched-tokens", size)
    elif kind == "parallel":
        report = nibble_bench(arguments, "--depth", 128, "--input-len", 1, "--output-len", DECODED, "--concurrency", size)
    else:
        report = nibble_bench(arguments, "--depth", size, "--input-len", 1, "--output-len", DECODED_ALONE, "--concurrency", 1)
    run = report["runs"][0]
    which = "prefill" if kind == "prefill" else "decode"
    share = run["multiply_share" if kind == "prefill" else "bandwidth_share"]
    return {"tokens_per_s": run[f"{which}_tokens_per_s"], "clean_steps": run[f"clean_{which}_steps"],
            "steps": run[f"{which}_steps"], "share": share, "peak_memory": report["peak_memory"],
            "anonymous_memory": report["anonymous_memory"], "read_bandwidth": report["read_bandwidth"],
            "peak_flops": report["peak_flops"]}


def read_all(files: list[Path]):
    """Brings files into the page cache, which the other program's memory has pushed them out of."""
    for file in files:
        with open(file, "rb", buffering=0) as opened:
            while opened.read(1 << 26):
                pass


def drop(files: list[Path]):
    """Out of the page cache."""
    for file in files:
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def map_all(files: list[Path]):
    """What is not in the page cache comes in as nibble's own mapping brings it in, in huge pages where the file system has them."""
    for file in files:
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            mapped.madvise(mmap.MADV_HUGEPAGE)
            for at in range(0, len(mapped), mmap.PAGESIZE):
                mapped[at]


def peer_run(arguments, item: str, mapped: bool = True) -> dict:
    """One item by the peer in a process of its own, with its peak memory."""
    environment = os.environ | {"LLAMA_CPP_LIB_PATH": arguments.peer_library, "PYTHONPATH": arguments.peer_python}
    if arguments.peer_preload:
        environment["LD_PRELOAD"] = str(Path(arguments.peer_preload).resolve())
    command = [sys.executable, STEPS, arguments.gguf, item, "--budget", arguments.budget]
    if arguments.threads:
        command += ["--threads", arguments.threads]
    if not mapped:
        command.append("--no-mmap")
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, env=environment, check=True)
    rows = {row["item"]: row for row in map(json.loads, done.stdout.splitlines())}
    return rows[item] | {"peak_memory": rows["end"]["peak_memory"]}


def note(text: str):
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def take_turns(arguments, item: str) -> tuple[list[dict], list[dict]]:
    ours, theirs = [], []
    for turn in range(arguments.turns):
        note(f"{item}, turn {turn + 1} of {arguments.turns}: nibble")
        map_all(sorted(Path(arguments.model).glob("*.safetensors")))
        ours.append(nibble_item(arguments, item))
        note(f"{item}, turn {turn + 1} of {arguments.turns}: llama.cpp")
        read_all([Path(arguments.gguf)])
        theirs.append(peer_run(arguments, item))
    return ours, theirs


def mean(rows: list[dict], key: str) -> float:
    return statistics.fmean(row[key] for row in rows)


def row(item: str, ours: list[dict], theirs: list[dict]) -> str:
    """A line of the table. Of times the lesser is the better, so their ratio is turned over."""
    key, unit, digits = ("first_token_s", "s", 2) if item == "load" else ("tokens_per_s", "tokens/s", 2)
    ratios = [other[key] / own[key] if key == "first_token_s" else own[key] / other[key] for own, other in zip(ours, theirs)]
    of_means = mean(theirs, key) / mean(ours, key) if key == "first_token_s" else mean(ours, key) / mean(theirs, key)
    each = ", ".join(f"{own[key]:.{digits}f}" for own in ours), ", ".join(f"{other[key]:.{digits}f}" for other in theirs)
    share = f"{100 * max(own['share'] for own in ours):.0f} %" if "share" in ours[0] else ""
    clean = "" if item == "load" else " ".join(f"{own['clean_steps']}/{own['steps']}" for own in ours)
    return (f"| {item}, {unit} | {mean(ours, key):.{digits}f} ({each[0]}) | {mean(theirs, key):.{digits}f} ({each[1]}) | "
            f"{of_means:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {clean} | {share} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("gguf")
    parser.add_argument("--peer-library", required=True)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--nibble", default=str(Path(__file__).parents[1] / "build/release/nibble"))
    parser.add_argument("--quantization", default="none", help="nibble's dense weights: q8 beside a Q8_0 file, none beside bf16")
    parser.add_argument("--dtype", default="auto", help="nibble's activations")
    parser.add_argument("--kernels", default="auto", help="nibble's --moe-runner-backend")
    parser.add_argument("--peer-preload", help="a library that is loaded ahead of the peer's")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--budget", type=float, default=40, help="seconds an item of the peer may take, a prompt twice as many")
    parser.add_argument("--turns", type=int, default=3, help="of each program, for each item")
    parser.add_argument("--items", nargs="+", default=ITEMS)
    arguments = parser.parse_args()

    print("| item | nibble, mean (turns) | llama.cpp, mean (turns) | ratio (turns) | nibble's clean steps | nibble's best share |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    drop(sorted(Path(arguments.model).glob("*.safetensors")))
    all_ours, all_theirs = [], []
    for item in arguments.items:
        ours, theirs = take_turns(arguments, item)
        print(row(item, ours, theirs), flush=True)
        all_ours += [result for result in ours if "peak_memory" in result]
        all_theirs += theirs
    read_all([Path(arguments.gguf)])
    unmapped = peer_run(arguments, "load", mapped=False)
    peak = max(result["peak_memory"] for result in all_theirs)
    print(f"| the peer without mmap: first token, s; peak memory, GB | | {unmapped['first_token_s']:.2f}; "
          f"{unmapped['peak_memory'] / 1e9:.2f} | | | |")
    if all_ours:
        memory = max(result["peak_memory"] for result in all_ours)
        print(f"| peak memory, GB | {memory / 1e9:.2f} | {peak / 1e9:.2f} | {peak / memory:.2f} | | |")
        print(f"\nRead speed {min(result['read_bandwidth'] for result in all_ours) / 1e9:.1f} to "
              f"{max(result['read_bandwidth'] for result in all_ours) / 1e9:.1f} GB/s, multiply rate "
              f"{max(result['peak_flops'] for result in all_ours) / 1e9:.0f} GFLOP/s; decode's share is of the first, "
              f"prefill's of the second, each as measured in its turn.")


if __name__ == "__main__":
    main()
