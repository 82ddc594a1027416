#!/usr/bin/env python3
"""What rounding the inputs of products costs: a text's log-probabilities with each --dtype beside those with float32.

    bench/dtype_error.py MODEL TEXT [--nibble PROGRAM] [--quantization none] [--words 160] [--pieces 100]
                        [--dtypes bfloat16 int8]

TEXT is cut into pieces of so many words, and each is scored from its beginning. Printed are the mean negative log-probability
of a token, how far a token's is from float32's (mean, 99 of 100, most).
"""
import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path


def scores(arguments, prompts: Path, dtype: str) -> list:
    command = [arguments.nibble, "generate", arguments.model, "--prompts", prompts, "--max-tokens", 0, "--prompt-logprobs",
               "--json", "--dtype", dtype, "--kv-cache-dtype", "bfloat16", "--quantization", arguments.quantization]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, check=True, text=True)
    return [value for line in done.stdout.splitlines() for value in json.loads(line)["prompt_logprobs"][1:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--nibble", default="build/release/nibble")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "int8"], help="beside float32; fp8 where weights are in FP8")
    parser.add_argument("--words", type=int, default=160)
    parser.add_argument("--pieces", type=int, default=100)
    arguments = parser.parse_args()
    words = arguments.text.read_text().split()
    pieces = [" ".join(words[at:at + arguments.words]) for at in range(0, len(words), arguments.words)][:arguments.pieces]
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": piece}) + "\n" for piece in pieces))
        found = {dtype: scores(arguments, prompts, dtype) for dtype in ["float32", *arguments.dtypes]}
    exact = found["float32"]
    print(f"{len(exact)} tokens of {len(pieces)} pieces")
    for dtype, values in found.items():
        apart = sorted(abs(a - b) for a, b in zip(values, exact))
        print(f"{dtype:10} mean -log p {-statistics.fmean(values):.5f}   apart from float32: mean {statistics.fmean(apart):.5f}, "
              f"99 % within {apart[len(apart) * 99 // 100]:.4f}, most {apart[-1]:.3f}")


if __name__ == "__main__":
    main()
