#!/usr/bin/env python3
"""Compares the ids of `nibble tokenize` with those of PyPI tokenizers and tiktoken on generated texts.

    tests/tokenizer_differential.py --strings 1000000 [--seed N]

Every assigned code point comes by itself and in context; the rest is random, made of what split patterns and
normalization tell apart. The tokenizers are the small ones in tests/data/tokenizers, and published ones: o200k's
200,000 ranks with each pattern, Qwen's with Qwen3's, DeepSeek's as it is.
"""
import argparse
import base64
import functools
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tiktoken
from tokenizers import Tokenizer

import vocabularies
from nibble_program import BINARY, ROOT, environment

DATA = ROOT / "tests/data/tokenizers"
SMALL = ("gpt_oss", "qwen3", "qwen3_5", "deepseek_v3", "glm_4_5", "gpt2")

# As the model's own code joins it.
NOT_HAN = "&&[^\\p{Han}]]"
KIMI_UPPER, KIMI_LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}" + NOT_HAN, r"[\p{Ll}\p{Lm}\p{Lo}\p{M}" + NOT_HAN
KIMI_BEFORE, KIMI_BEHIND = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([
    r"[\p{Han}]+", f"{KIMI_BEFORE}{KIMI_UPPER}*{KIMI_LOWER}+{KIMI_BEHIND}",
    f"{KIMI_BEFORE}{KIMI_UPPER}+{KIMI_LOWER}*{KIMI_BEHIND}", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])

SPACES = " \t\n\r\x0b\x0c\x85\xa0\u1680\u2000\u2003\u2028\u2029\u202f\u205f\u3000\u180e\u200b\ufeff"
POOLS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJ", " ", " ", "\n", ["\r\n"], SPACES, "0123456789",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "'",
    ["'s", "'S", "'t", "'re", "'RE", "'ve", "'m", "'ll", "'LL", "'d", "'\u017f", "'lL", "'l", "'r", "'"],
    "\u0301\u0316\u0327\u0345\u0308\u0338", "éèÀÉñß\u0130\u0131ſǅǲ", "дДжЖ", "中文字測試", "ひらがなカタカナー・゛゜",
    "한국어\u1100\u1161\u11a8가", "١٢٣४५½Ⅷ²", "👩\u200d👧🏽🇩🇪❤\ufe0f", "अनुच्छेद ज़", "ไทยภาษา", "∑√€£©®™",
    "\x00\x01\x1f\x7f\x80\x9f\xad", ["the", "The", " the", "Hello", " world", "iPhone", "HTTPServer", "don't", "I'LL"],
    "\u2e80\u2f08\u3005\u3007\u3021\u303b\u3400\uf900\U00016fe2\U00016ff0\U00020000\U000323af", "\u09be\u09d7\u0b3e\u0fb5\u0f71",
]


@functools.lru_cache
def assigned_code_points():
    """As tiktoken's tables have them, private use included."""
    alone = {bytes([i]): i for i in range(256)}
    encoding = tiktoken.Encoding("probe", pat_str=r"\P{Cn}", mergeable_ranks=alone, special_tokens={})
    everything = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    found = []
    for first in range(0, len(everything), 4096):
        text = "".join(map(chr, everything[first:first + 4096]))
        found += map(ord, bytes(encoding.encode_ordinary(text)).decode())
    return found


def is_private(code_point):
    return 0xE000 <= code_point < 0xF900 or code_point >= 0xF0000


def random_text(rng, code_points, spellings):
    count = rng.choice([1, 2, 3, 4, 5, 8, 12, 20])
    if rng.random() < 0.15:
        return "".join(chr(rng.choice(code_points)) for _ in range(count))
    pools = [rng.choice(POOLS) for _ in range(rng.choice([1, 2, 2, 3, 4]))] + ([spellings] if spellings else [])
    parts = []
    for _ in range(count):
        parts.append(chr(rng.choice(code_points)) if rng.random() < 0.1 else rng.choice(rng.choice(pools)))
        if rng.random() < 0.08:
            parts.append(parts[-1] * rng.choice([1, 2, 3, 5, 9]))
    return "".join(parts)


def make_texts(count, seed, spellings=()):
    """`count` texts. Enough of them to hold every assigned code point alone and in two contexts do; fewer hold each
    code point once."""
    rng = random.Random(seed)
    code_points = assigned_code_points()
    shown = [c for c in code_points if not is_private(c)]
    texts = []
    if count > 4 * len(shown):
        for c in code_points:
            texts.append(chr(c))
            if not is_private(c):
                texts += ["a" + chr(c) + "B", f" {chr(c)} {chr(c)}1{chr(c)}'s"]
    else:
        step = 64
        for first in range(0, len(code_points), step):
            texts.append(rng.choice(["", " ", "a", "1"]).join(map(chr, code_points[first:first + step])))
    while len(texts) < count:
        texts.append(random_text(rng, shown, list(spellings)))
    return texts


def nibble_ids(path, texts, *options):
    """Ids of each text, all by one run of the program."""
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    done = subprocess.run([BINARY, "tokenize", path, "--json-lines", *options], input=lines.encode(), capture_output=True,
                          env=environment())
    assert done.returncode == 0, done.stderr.decode(errors="backslashreplace")
    found = [json.loads(line)["ids"] for line in done.stdout.splitlines()]
    assert len(found) == len(texts)
    return found


def hugging_face_ids(tokenizer_json, texts):
    tokenizer = Tokenizer.from_str(tokenizer_json)
    for first in range(0, len(texts), 20000):
        for encoding in tokenizer.encode_batch_fast(texts[first:first + 20000], add_special_tokens=False):
            yield encoding.ids


def differences(texts, ours, theirs):
    """(text, our ids, their ids) where they differ."""
    return [(text, a, list(b)) for text, a, b in zip(texts, ours, theirs, strict=True) if a != list(b)]


def compare_tokenizer_json(path, texts):
    """With added tokens as plain text, which PyPI tokenizers does when there are none."""
    tokenizer = json.loads(Path(path).read_text())
    plain = json.dumps(tokenizer | {"added_tokens": []})
    return differences(texts, nibble_ids(path, texts), hugging_face_ids(plain, texts))


def compare_trusted(path, texts):
    return differences(texts, nibble_ids(path, texts, "--special"), hugging_face_ids(Path(path).read_text(), texts))


def ranks_of(path):
    lines = map(bytes.split, Path(path).read_bytes().splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def kimi_comparison(trusted):
    """Of the texts, with the control tokens that tokenizer_config.json names."""
    folder = DATA / "kimi_k2"
    ranks = ranks_of(folder / "tiktoken.model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    special = {token["content"]: int(number) for number, token in config["added_tokens_decoder"].items()}
    encoding = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)
    theirs = functools.partial(encoding.encode, allowed_special="all") if trusted else encoding.encode_ordinary
    options = ["--special"] if trusted else []
    return lambda texts: differences(texts, nibble_ids(folder, texts, *options), map(theirs, texts)), list(special)


def compare_tiktoken(path, texts):
    """`path`: a rank file; its encoding is o200k."""
    encoding = tiktoken.Encoding("o200k", pat_str=split_pattern("gpt_oss"), mergeable_ranks=ranks_of(path), special_tokens={})
    ours = nibble_ids(path, texts, "--encoding", "o200k_harmony")
    return differences(texts, ours, map(encoding.encode_ordinary, texts))


def split_pattern(name):
    tokenizer = json.loads((DATA / name / "tokenizer.json").read_text())
    return tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]


def byte_alphabet():
    """GPT-2's: byte -> character."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


def small_rank_file(folder):
    """The vocabulary of the small gpt_oss as ranks."""
    byte_of = {character: byte for byte, character in byte_alphabet().items()}
    vocab = json.loads((DATA / "gpt_oss/tokenizer.json").read_text())["model"]["vocab"]
    path = Path(folder) / "small.tiktoken"
    with path.open("wb") as file:
        for token, rank in vocab.items():
            file.write(base64.b64encode(bytes(byte_of[c] for c in token)) + f" {rank}\n".encode())
    return path


@functools.lru_cache
def vocabulary_of(ranks_path):
    """A rank file's as a tokenizer.json has it: ids of tokens, and merges."""
    ranks = ranks_of(ranks_path)
    alphabet = byte_alphabet()
    spell = {token: "".join(alphabet[byte] for byte in token) for token in ranks}
    merges = []
    for token, rank in ranks.items():
        halves = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += sorted((rank, ranks[left], ranks[right], spell[left], spell[right]) for left, right in halves)
    merges.sort(key=lambda merge: merge[0])
    return {spell[token]: rank for token, rank in ranks.items()}, [[left, right] for *_, left, right in merges]


def large_tokenizer_json(ranks_path, name, folder):
    """The ranks as a tokenizer.json with the steps before byte pairs that the small one of this name has."""
    tokenizer = json.loads((DATA / name / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = []
    tokenizer["model"]["vocab"], tokenizer["model"]["merges"] = vocabulary_of(ranks_path)
    path = Path(folder) / f"{ranks_path.stem}_{name}.json"
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))
    return path


def of_tokenizer_json(name, path):
    spellings = [token["content"] for token in json.loads(path.read_text())["added_tokens"]]
    yield f"{name}, control tokens plain", lambda texts: compare_tokenizer_json(path, texts), spellings
    yield f"{name}, control tokens trusted", lambda texts: compare_trusted(path, texts), spellings


def comparisons(folder):
    """(name, function of texts, control spellings to mix in) of everything that can be compared with small tokenizers."""
    for name in SMALL:
        yield from of_tokenizer_json(name, DATA / name / "tokenizer.json")
    for trusted in (False, True):
        yield f"kimi_k2, control tokens {'trusted' if trusted else 'plain'}", *kimi_comparison(trusted)
    path = small_rank_file(folder)
    yield "tiktoken, small", lambda texts: compare_tiktoken(path, texts), []


def published_comparisons(folder, patterns=SMALL):
    """The same with published vocabularies, o200k's with each of these patterns."""
    yield from of_tokenizer_json("deepseek", vocabularies.DEEPSEEK)
    yield "tiktoken, o200k", lambda texts: compare_tiktoken(vocabularies.O200K, texts), []
    for ranks, name in [(vocabularies.QWEN, "qwen3"), *((vocabularies.O200K, name) for name in patterns)]:
        path = large_tokenizer_json(ranks, name, folder)
        yield path.stem, lambda texts, path=path: compare_tokenizer_json(path, texts), []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strings", type=int, default=1000000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name, compare, spellings in itertools.chain(comparisons(folder), published_comparisons(folder)):
            begin = time.monotonic()
            texts = make_texts(args.strings, args.seed, spellings)
            found = compare(texts)
            print(f"{name}: {len(texts)} texts, {len(found)} differ ({time.monotonic() - begin:.0f} s)", flush=True)
            for text, ours, theirs in found[:10]:
                print(f"  {ascii(text)}\n    nibble {ours}\n    theirs {theirs}")
            failed = failed or bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
