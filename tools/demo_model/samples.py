"""Answers to prompts.txt by nibble, as Markdown: python samples.py NIBBLE CHECKPOINT [--seeds 8]

A line of prompts.txt is a request, then the words that an answer to it has to hold. Every seed is counted; the answers
of the first are printed.
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROMPTS = Path(__file__).with_name("prompts.txt")
TEMPERATURE, MOST_TOKENS, WANTED_WORDS = 0.7, 700, 100


def read_prompts() -> list[tuple[str, list[str]]]:
    lines = [line.split(" | ") for line in PROMPTS.read_text().splitlines() if line.strip()]
    return [(prompt, words.split()) for prompt, words in lines]


def holds(text: str, words: list[str]) -> bool:
    return all(re.search(rf"\b{word}", text, re.IGNORECASE) for word in words)


def answers(nibble: str, checkpoint: str, prompts, seeds: int) -> list[list[dict]]:
    """[seed][prompt], what nibble's JSON says."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for seed in range(1, seeds + 1):
            for prompt, _ in prompts:
                request = {"messages": [{"role": "user", "content": prompt}], "seed": seed, "temperature": TEMPERATURE,
                           "max_tokens": MOST_TOKENS}
                file.write(json.dumps(request) + "\n")
        file.flush()
        done = subprocess.run([nibble, "generate", checkpoint, "--prompts", file.name, "--json"], stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(done.returncode)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [lines[begin:begin + len(prompts)] for begin in range(0, len(lines), len(prompts))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nibble")
    parser.add_argument("checkpoint")
    parser.add_argument("--seeds", type=int, default=8)
    arguments = parser.parse_args()
    prompts = read_prompts()
    told = answers(arguments.nibble, arguments.checkpoint, prompts, arguments.seeds)

    print("# Twenty answers\n")
    print(f"The requests of `tools/demo_model/prompts.txt`, one conversation each without a system message, at temperature "
          f"{TEMPERATURE}. Below\nare the answers of seed 1, none chosen or changed; the table counts every seed.\n")
    print(f"| seed | hold every word that was asked for | have {WANTED_WORDS} words | end by themselves |")
    print("| ---: | ---: | ---: | ---: |")
    for seed, row in enumerate(told, 1):
        held = sum(holds(answer["text"], words) for answer, (_, words) in zip(row, prompts))
        long = sum(len(answer["text"].split()) >= WANTED_WORDS for answer in row)
        ended = sum(answer["finish_reason"] == "stop" for answer in row)
        print(f"| {seed} | {held} | {long} | {ended} |")
    for number, (answer, (prompt, words)) in enumerate(zip(told[0], prompts), 1):
        missing = [word for word in words if not holds(answer["text"], [word])]
        notes = f"{len(answer['text'].split())} words" + (f", without: {', '.join(missing)}" if missing else "")
        print(f"\n## {number}. {prompt}\n\n({notes})\n\n{answer['text'].strip()}")


if __name__ == "__main__":
    main()
