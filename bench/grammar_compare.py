#!/usr/bin/env python3
"""Schema-bound decoding beside LLGuidance and XGrammar (PyPI) on MaskBench's files, one thread each, in one run.

    bench/grammar_compare.py --ranks o200k_base.tiktoken --files DIR [--every 40] [--program build/release/nibble]
    bench/grammar_compare.py --vocabulary qwen3 --ranks qwen.tiktoken --files DIR ...

Qwen's ranks are in PyPI's dashscope, as dashscope/resources/qwen.tiktoken; Qwen3 has them with more control tokens.

An engine compiles a file's schema and is led through the tokens of each instance, compact and indented by 2, with a mask before
each token. An engine runs in a process of its own, told one file at a time: one that dies or takes longer than
--file-seconds has lost the file and is started again. Times are CPU time of the thread. Needs tiktoken and the peers.
"""
import argparse
import base64
import datetime
import importlib.metadata
import json
import os
import platform
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
O200K_PATTERN = "|".join([
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+"""])


QWEN_TOKENIZER = ROOT / "tests/data/tokenizers/qwen3/tokenizer.json"  # Qwen3's, but for most of its vocabulary
QWEN_CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # behind the ranks


def read_ranks(path):
    pairs = [line.split() for line in Path(path).read_text().split("\n") if line]
    return {base64.b64decode(text): int(rank) for text, rank in pairs}


def encoding_of(vocabulary, path):
    import tiktoken

    ranks = read_ranks(path)
    if vocabulary == "o200k":
        return tiktoken.Encoding("o200k_base", pat_str=O200K_PATTERN, special_tokens={"<|endoftext|>": 199999}, mergeable_ranks=ranks)
    pattern = json.loads(QWEN_TOKENIZER.read_text())["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    controls = {name: len(ranks) + i for i, name in enumerate(QWEN_CONTROLS)}
    return tiktoken.Encoding("qwen3", pat_str=pattern, special_tokens=controls, mergeable_ranks=ranks)


def end_of(encoding):
    return encoding.encode("<|endoftext|>", allowed_special="all")[0]


def parts_of(token, ranks):
    """The two tokens that were merged to make it."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [(ranks.get(parts[i] + parts[i + 1], len(ranks)), i) for i in range(len(parts) - 1)]
        i = min(pairs)[1]
        parts[i: i + 2] = [parts[i] + parts[i + 1]]
    return parts


def write_qwen_tokenizer(path, folder):
    """Qwen3's tokenizer.json from its ranks."""
    ranks = read_ranks(path)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2's letters for bytes
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + i) for i, byte in enumerate(byte for byte in range(256) if byte not in letters)}
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    tokenizer = json.loads(QWEN_TOKENIZER.read_text())
    tokenizer["model"]["vocab"] = {spelled[token]: rank for token, rank in ranks.items()}
    tokenizer["model"]["merges"] = [" ".join(spelled[part] for part in parts_of(token, ranks)) for token in ranks if len(token) > 1]
    tokenizer["added_tokens"] = [added | {"id": len(ranks) + QWEN_CONTROLS.index(added["content"])}
                                 for added in tokenizer["added_tokens"] if added["content"] in QWEN_CONTROLS]
    file = Path(folder) / "tokenizer.json"
    file.write_text(json.dumps(tokenizer))
    return file


class LlGuidance:
    def __init__(self, encoding):
        import llguidance.numpy
        import llguidance.tiktoken

        self.library, self.masks = llguidance, llguidance.numpy
        self.tokenizer = llguidance.tiktoken.lltokenizer_from_encoding(encoding)
        self.mask = self.masks.allocate_token_bitmask(1, self.tokenizer.vocab_size)

    def compile(self, schema):
        grammar = self.library.LLMatcher.grammar_from_json_schema(schema)
        self.first = self.library.LLMatcher(self.tokenizer, grammar, log_level=0)
        if self.first.is_error():
            raise ValueError(self.first.get_error())

    def start(self):
        self.matcher = self.first.deep_copy()

    def fill(self):
        self.masks.fill_next_token_bitmask(self.matcher, self.mask)

    def accept(self, token):
        return self.matcher.consume_token(token)

    def complete(self):
        return self.matcher.is_accepting()


class XGrammar:
    def __init__(self, encoding):
        import xgrammar

        self.library = xgrammar
        texts = [b""] * encoding.n_vocab
        for token in range(encoding.n_vocab):
            try:
                texts[token] = encoding.decode_single_token_bytes(token)
            except KeyError:
                pass
        self.end = end_of(encoding)
        info = xgrammar.TokenizerInfo(texts, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[self.end])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.mask = xgrammar.allocate_token_bitmask(1, info.vocab_size)

    def compile(self, schema):
        self.grammar = self.compiler.compile_json_schema(schema, strict_mode=False)

    def start(self):
        self.matcher = self.library.GrammarMatcher(self.grammar)

    def fill(self):
        self.matcher.fill_next_token_bitmask(self.mask)

    def accept(self, token):
        return self.matcher.accept_token(token)

    def complete(self):
        return self.matcher.accept_token(self.end)


def follow(engine, ids, masks):
    engine.start()
    for token in ids:
        begin = time.thread_time_ns()
        engine.fill()
        masks.append((time.thread_time_ns() - begin) / 1000)
        word = int(engine.mask[0][token // 32])
        if not word >> token % 32 & 1 or not engine.accept(token):
            return False
    return bool(engine.complete())


def judge(engine, encoding, path):
    case = json.loads(Path(path).read_text())
    begin = time.thread_time_ns()
    try:
        engine.compile(json.dumps(case["schema"]))
    except Exception as failure:  # the peers have many kinds
        return {"compiled": False, "refused_keyword": str(failure)[:200]}
    result = {"compiled": True, "compile_us": (time.thread_time_ns() - begin) / 1000, "wrong_accepts": 0, "wrong_refusals": 0}
    masks = []
    for test in case.get("tests", []):
        texts = [json.dumps(test["data"], ensure_ascii=False, separators=(",", ":")),
                 json.dumps(test["data"], ensure_ascii=False, indent=2)]
        taken = [follow(engine, encoding.encode(text, disallowed_special=()), masks) for text in texts]
        result["wrong_refusals"] += test["valid"] and not all(taken)
        result["wrong_accepts"] += not test["valid"] and any(taken)
    return result | {"masks": masks}


def serve(name, vocabulary, ranks):
    """The process of a peer: a path a line in, a JSON line out."""
    encoding = encoding_of(vocabulary, ranks)
    engine = {"llguidance": LlGuidance, "xgrammar": XGrammar}[name](encoding)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the peers print is no answer
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(judge(engine, encoding, line.strip())), file=out, flush=True)


class Peer:
    def __init__(self, name, vocabulary, ranks, seconds):
        self.command = [sys.executable, __file__, "--serve", name, "--vocabulary", vocabulary, "--ranks", ranks]
        self.seconds, self.process = seconds, None

    def line(self, seconds):
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return self.process.stdout.readline() if ready else b""

    def judge(self, path):
        if self.process is None:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert self.line(300), f"{self.command} does not start"
        self.process.stdin.write(f"{path}\n".encode())
        self.process.stdin.flush()
        line = self.line(self.seconds)
        if line:
            return json.loads(line)
        self.process.kill()
        self.process.wait()
        self.process = None
        return {"compiled": False, "refused_keyword": "died or took too long"}


def nibble(program, vocabulary, ranks, paths):
    with tempfile.TemporaryDirectory() as folder:
        model = [ranks, "--encoding", "o200k_base"] if vocabulary == "o200k" else [write_qwen_tokenizer(ranks, folder)]
        done = subprocess.run([program, "grammar", *model, "--json", "--maskbench", *paths], stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def share(values, part):
    return sorted(values)[int((len(values) - 1) * part)] if values else float("nan")


def row(name, results):
    compiled = [result for result in results if result["compiled"]]
    wrong = [result for result in compiled if result["wrong_accepts"] or result["wrong_refusals"]]
    masks = [mask for result in compiled for mask in result["masks"]]
    compiles = [result["compile_us"] for result in compiled]
    cells = [name, len(compiled), len(compiled) - len(wrong), sum(result["wrong_accepts"] for result in compiled),
             sum(result["wrong_refusals"] for result in compiled), len(masks), f"{sum(masks) / max(1, len(masks)):.1f}"]
    cells += [f"{value:,.0f}" for value in (share(masks, 0.99), share(masks, 1), share(compiles, 0.5), share(compiles, 0.99))]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", choices=["o200k", "qwen3"], default="o200k")
    parser.add_argument("--ranks", required=True, help="o200k_base.tiktoken, or qwen.tiktoken")
    parser.add_argument("--files", help="the folder of MaskBench's files")
    parser.add_argument("--every", type=int, default=40, help="one file of so many")
    parser.add_argument("--program", default=str(ROOT / "build/release/nibble"))
    parser.add_argument("--file-seconds", type=float, default=30)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.vocabulary, options.ranks)
    paths = sorted(str(path) for path in Path(options.files).glob("*.json"))[:: options.every]
    print(f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {len(paths)} files, {options.vocabulary}; " +
          ", ".join(f"{peer} {importlib.metadata.version(peer)}" for peer in ("llguidance", "xgrammar")))
    print("| | compiled | wholly right | wrong accepts | wrong refusals | masks | mask avg us | p99 | max | compile p50 us | p99 |")
    print("| --- " + "| ---: " * 10 + "|")
    print(row("nibble", nibble(options.program, options.vocabulary, options.ranks, paths)), flush=True)
    for name in ("llguidance", "xgrammar"):
        peer = Peer(name, options.vocabulary, options.ranks, options.file_seconds)
        print(row(name, [peer.judge(path) for path in paths]), flush=True)
        if peer.process:
            peer.process.kill()


if __name__ == "__main__":
    main()
