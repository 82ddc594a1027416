#!/usr/bin/env python3
"""Writes tests/data/tokenizers: small tokenizers of the kinds nibble reads, and the ids PyPI tokenizers gives.

    tools/make_tokenizer_cases.py

Each folder has a tokenizer.json as the model of that name has it, but with a vocabulary of a few hundred tokens,
and cases.json: texts with their ids where added tokens are plain text ("plain") and where they count
("trusted"), and what the former decode to.
"""
import json
import random
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "tests/data/tokenizers"

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL
)
QWEN = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*" + TAIL.replace(r"[\r\n]", "[\r\n]"),
]

CORPUS = """
Once upon a time there was a fox who lived at the edge of a great forest. The fox wasn't lonely, for the bear, the
hare and the old owl were its friends. "What shall we do today?" asked the bear. "We'll go and look for honey," said
the fox, "and if there isn't any, we'll tell each other stories." They walked 12 miles and counted 345 trees.
def tell(story: str) -> None:
    print(f"{story}\\n")  # https://example.com/stories?id=42
Il était une fois un renard très rusé. Es war einmal ein schöner großer Bär. Жила-была лиса в лесу.
从前有一只狐狸住在森林里。昔々、森のはずれに狐が住んでいました。옛날 옛적에 여우가 살았습니다.
كان يا ما كان في قديم الزمان ثعلب. एक समय की बात है, एक लोमड़ी थी। 👩‍👩‍👧 🦊🐻 ½ Ⅷ
""" * 3


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)


def byte_level():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def train(pre_tokenizer, normalizer=None, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, min_frequency=2, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS.splitlines(keepends=True), trainer)
    return json.loads(tokenizer.to_str())


def add(tokenizer, contents):
    """Adds (content, special) tokens behind the vocabulary."""
    first = len(tokenizer["model"]["vocab"])
    for i, (content, special) in enumerate(contents):
        tokenizer["added_tokens"].append({
            "id": first + i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": special})
    return tokenizer


def make_all():
    gpt_oss = train(pre_tokenizers.Sequence([split(O200K), byte_level()]), ignore_merges=True)
    yield "gpt_oss", add(gpt_oss, [(f"<|{name}|>", True) for name in
                                   ("startoftext", "endoftext", "return", "channel", "start", "end", "message", "call")])
    qwen3 = train(pre_tokenizers.Sequence([split(QWEN), byte_level()]), normalizers.NFC())
    qwen3["model"]["merges"] = [" ".join(pair) for pair in qwen3["model"]["merges"]]  # as older files have them
    yield "qwen3", add(qwen3, [("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True),
                               ("<tool_call>", False), ("</tool_call>", False), ("<think>", False), ("</think>", False)])
    deepseek = train(pre_tokenizers.Sequence([split(p) for p in DEEPSEEK] + [byte_level()]), normalizers.Sequence([]))
    yield "deepseek_v3", add(deepseek, [("<｜begin▁of▁sentence｜>", True), ("<｜end▁of▁sentence｜>", True),
                                        ("<｜User｜>", False), ("<｜Assistant｜>", False)])
    yield "gpt2", add(train(pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)), [("<|endoftext|>", True)])


PARTS = [
    "a", "The", " fox", "Bear", "HTTPServer", "don't", "I'LL", "'s", "'ſ", "'Re", " ", "  ", "\t", "\n", "\r\n", "\n\n",
    "1", "1234567", " 42", "!", "...", " -> ", "/", "//\n", "_x", "é", "e\u0301", "q\u0307\u0323", "\u0301", "Å", "中文", "森の",
    "カー・", "한국", "ᄒ\u1161\u11ab", "कि", "👩‍👩‍👧", "🇩🇪", "½", "\xa0", "\u2028", "\u3000", "\ufeff", "\x00", "\x7f", "\u1c89", "\U0002ebf0",
]


def texts(added):
    yield from ["", "Hello, world!", CORPUS.strip()]
    yield from ["".join(pair) for part in PARTS for pair in (("", part), ("a", part), (part, "B"), (" ", part, " "))]
    rng = random.Random(3)
    for _ in range(150):
        yield "".join(rng.choice(PARTS + added) for _ in range(rng.randrange(1, 9)))


def main():
    for name, tokenizer in make_all():
        folder = OUT / name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "tokenizer.json"
        path.write_text(json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")) + "\n")
        trusted = Tokenizer.from_str(json.dumps(tokenizer))
        plain = Tokenizer.from_str(json.dumps(tokenizer | {"added_tokens": []}))
        cases = []
        for text in texts([token["content"] for token in tokenizer["added_tokens"]]):
            ids = plain.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "plain": ids, "trusted": trusted.encode(text, add_special_tokens=False).ids,
                          "decoded": plain.decode(ids, skip_special_tokens=False)})
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        (folder / "cases.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
