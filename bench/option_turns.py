#!/usr/bin/env python3
"""CPU time of a token with two sets of nibble's options, in turns: for machines on which others compute too.

    bench/option_turns.py MODEL --first "--quantization none" --second "--quantization q8" [--both "--dtype int8"] [--prompt 512]
                          [--turns 3] [--nibble PROGRAM]

Of one sequence: tokens of an answer, or with --prompt those of a prompt. A turn runs `nibble bench` twice with each set, with few tokens
and with many, and takes the difference of the processes' CPU time, in which loading cancels out. Prints milliseconds a token for each turn,
and the first's over the second's, in the mean and as the range of the turns.
"""
import argparse
import resource
import shlex
import statistics
import subprocess
from pathlib import Path

FEW, MANY = 32, 288  # tokens of an answer
FEW_PROMPTS, MANY_PROMPTS = 2, 6


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def bench_seconds(arguments, options: list[str], *sizes) -> float:
    before = cpu_seconds()
    command = [arguments.nibble, "bench", arguments.model, "--json", "--concurrency", 1, *options, *sizes]
    subprocess.run([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return cpu_seconds() - before


def token_ms(arguments, options: list[str]) -> float:
    if arguments.prompt == 0:
        few, many = (bench_seconds(arguments, options, "--input-len", 1, "--output-len", tokens) for tokens in (FEW, MANY))
        return (many - few) / (MANY - FEW) * 1e3
    shape = ("--input-len", arguments.prompt, "--output-len", 1, "--max-num-batched-tokens", arguments.prompt)
    few, many = (bench_seconds(arguments, options, *shape, "--requests", prompts) for prompts in (FEW_PROMPTS, MANY_PROMPTS))
    return (many - few) / (MANY_PROMPTS - FEW_PROMPTS) / arguments.prompt * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--first", type=shlex.split, required=True)
    parser.add_argument("--second", type=shlex.split, required=True)
    parser.add_argument("--both", type=shlex.split, default=[])
    parser.add_argument("--prompt", type=int, default=0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--nibble", default=Path(__file__).resolve().parents[1] / "build/release/nibble")
    arguments = parser.parse_args()
    turns = []
    for _ in range(arguments.turns):
        turns.append([token_ms(arguments, arguments.both + options) for options in (arguments.first, arguments.second)])
        print(f"{turns[-1][0]:.2f} ms, {turns[-1][1]:.2f} ms", flush=True)
    ratios = [first / second for first, second in turns]
    means = [statistics.mean(side) for side in zip(*turns)]
    print(f"{means[0]:.2f} over {means[1]:.2f} ms a token: {means[0] / means[1]:.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


main()
