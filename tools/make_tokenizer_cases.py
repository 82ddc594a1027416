#!/usr/bin/env python3
"""Writes tests/data/tokenizers: small tokenizers of the kinds nibble reads, and the ids PyPI tokenizers gives; those
of Kimi's, which are ranks of tiktoken, are tiktoken's.

    tools/make_tokenizer_cases.py

Each folder has a tokenizer.json as the model of that name has it, but with a vocabulary of a few hundred tokens,
and cases.json: texts with their ids where added tokens are plain text ("plain") and where they count
("trusted"), and what the former decode to.
"""
import base64
import json
import random
from pathlib import Path

import tiktoken
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
QWEN35 = QWEN.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
NOT_HAN = "&&[^\\p{Han}]]"
KIMI = r"[\p{Han}]+|" + O200K.replace(UPPER, UPPER[:-1] + NOT_HAN).replace(LOWER, LOWER[:-1] + NOT_HAN).replace("\\n/]", "\\n]")
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
    qwen35 = train(pre_tokenizers.Sequence([split(QWEN35), byte_level()]), normalizers.NFC())
    yield "qwen3_5", add(qwen35, [("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True),
                                  ("<tool_call>", False), ("</tool_call>", False), ("<think>", False), ("</think>", False)])
    glm = train(pre_tokenizers.Sequence([split(LLAMA3), byte_level()]))
    yield "glm_4_5", add(glm, [(name, True) for name in ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>",
                                                         "<|assistant|>", "<|observation|>")] +
                         [(name, False) for name in ("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>")])
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


def byte_alphabet():
    """Character of the byte-level alphabet -> byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


KIMI_CONTROLS = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 10: "<|im_system|>",
                 11: "<|tool_calls_section_begin|>", 12: "<|tool_calls_section_end|>", 13: "<|tool_call_begin|>",
                 14: "<|tool_call_argument_begin|>", 15: "<|tool_call_end|>", 17: "<|im_middle|>", 22: "<think>",
                 23: "</think>", 254: "[UNK]", 255: "[PAD]"}
KIMI_SHOWN = range(11, 16), range(22, 24)


def write_kimi():
    byte_of = byte_alphabet()
    vocab = train(pre_tokenizers.Sequence([split(KIMI), byte_level()]))["model"]["vocab"]
    ranks = {bytes(byte_of[c] for c in token): rank for token, rank in vocab.items()}
    first = len(ranks)
    special = {KIMI_CONTROLS.get(i, f"<|reserved_token_{first + i}|>"): first + i for i in range(256)}
    folder = OUT / "kimi_k2"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiktoken.model").write_bytes(
        b"".join(base64.b64encode(token) + f" {rank}\n".encode() for token, rank in ranks.items()))
    added = {str(first + i): {"content": name, "special": not any(i in shown for shown in KIMI_SHOWN)}
             for i, name in KIMI_CONTROLS.items()}
    config = {"added_tokens_decoder": added, "bos_token": "[BOS]", "eos_token": "[EOS]",
              "tokenizer_class": "TikTokenTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, separators=(",", ":")) + "\n")
    encoding = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)
    write_cases(folder, list(KIMI_CONTROLS.values()), encoding.encode_ordinary,
                lambda text: encoding.encode(text, allowed_special="all"), encoding.decode)


def write_cases(folder, added, plain, trusted, decode):
    cases = []
    for text in texts(added):
        ids = plain(text)
        cases.append({"text": text, "plain": ids, "trusted": trusted(text), "decoded": decode(ids)})
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (folder / "cases.json").write_text(f"[\n{lines}\n]\n")


def main():
    write_kimi()
    for name, tokenizer in make_all():
        folder = OUT / name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "tokenizer.json"
        path.write_text(json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")) + "\n")
        trusted = Tokenizer.from_str(json.dumps(tokenizer))
        plain = Tokenizer.from_str(json.dumps(tokenizer | {"added_tokens": []}))
        write_cases(folder, [token["content"] for token in tokenizer["added_tokens"]],
                    lambda text: plain.encode(text, add_special_tokens=False).ids,
                    lambda text: trusted.encode(text, add_special_tokens=False).ids,
                    lambda ids: plain.decode(ids, skip_special_tokens=False))


if __name__ == "__main__":
    main()
