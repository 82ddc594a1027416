"""With a stack of 256 KB for every thread: no text is so long and nothing nested so deep that it takes more."""
import json
import resource
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from giant_text_test import RUNS
from nibble_program import BINARY, ROOT, environment
from watched_server import SANITIZED, counts, serving

STACK = 256 << 10
SMALL = ROOT / "tests/data/tokenizers"
pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer's frames are larger")


def long_run(text, size):
    """`size` bytes of it, to a whole character."""
    return (text.encode() * size)[:size].decode(errors="ignore")


def ids_of(folder, text):
    """(ids, seconds of CPU time) of the program, its start included."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        begin = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([BINARY, "tokenize", folder, "--file", file.name], capture_output=True, env=environment(),
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (STACK, STACK)))
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime
    assert done.returncode == 0, (text[:10], done.returncode, done.stderr)
    return list(map(int, done.stdout.split())), seconds


def ids_of_others(oracle, text):
    """None where its pattern matcher gives up, as it does on ten million letters or spaces."""
    try:
        return oracle.encode(text, add_special_tokens=False).ids
    except BaseException as panic:  # noqa: BLE001 - what it raises is no Exception
        if type(panic).__name__ != "PanicException":
            raise
        return None


FOLDERS = [ROOT / "models/demo", *(SMALL / name for name in ("gpt_oss", "qwen3", "deepseek_v3", "gpt2"))]
# The other implementation needs minutes for the whole size, so it is two tokenizers'.
SIZES = [(folder, 100_000) for folder in FOLDERS] + [
    pytest.param(folder, size, marks=pytest.mark.extended) for folder, size in zip(FOLDERS, (10_000_000, 10_000_000, 2_000_000, 2_000_000, 2_000_000))]


@pytest.mark.parametrize("folder, size", SIZES, ids=lambda value: getattr(value, "name", str(value)))
def test_ids_of_long_runs_are_those_of_another_implementation(folder, size):
    plain = json.loads((folder / "tokenizer.json").read_text()) | {"added_tokens": []}
    oracle = Tokenizer.from_str(json.dumps(plain))
    slowest, compared = 0, []
    for name, unit in RUNS.items():
        ids, seconds = ids_of(folder, long_run(unit, size))
        slowest = max(slowest, seconds)
        expected = ids_of_others(oracle, long_run(unit, size))
        if expected is None:
            ids, _ = ids_of(folder, long_run(unit, size // 10))
            expected = ids_of_others(oracle, long_run(unit, size // 10))
        else:
            compared.append(name)
        assert ids == expected, name
    print(f"{folder.name}: {size} bytes in {slowest:.2f} s of CPU time at most; the other implementation takes {len(compared)} of {len(RUNS)}")
    assert slowest < 1 + 0.5 * size / 1e6


def nested(depth, left, inner, right):
    return left * depth + inner + right * depth


@pytest.fixture(scope="module")
def cramped():
    with serving("--max-body-bytes", 64 << 20, stack=STACK) as server:
        limits = Path(f"/proc/{server.engine()}/limits").read_text().splitlines()
        assert next(line for line in limits if line.startswith("Max stack")).split()[3] == str(STACK)
        yield server


@pytest.mark.parametrize("size", counts(100_000, 10_000_000))
def test_a_server_takes_long_runs(cramped, size):
    with cramped.survives(growth_mib=300):  # freed blocks of such sizes stay with the process
        for name, unit in RUNS.items():
            begin = time.monotonic()
            answer = cramped.ask("POST", "/tokenize", json.dumps({"prompt": long_run(unit, size)}, ensure_ascii=False).encode())
            assert answer.status == 200 and answer.json()["count"] > 0, name
            assert time.monotonic() - begin < 5 + 0.5 * size / 1e6, name
            chat = {"messages": [{"role": "user", "content": long_run(unit, size)}], "max_tokens": 1}
            assert cramped.ask("POST", "/v1/chat/completions", chat).json()["error"]["code"] == "context_length_exceeded", name


@pytest.mark.parametrize("depth", [10, 1000, *counts(100_000, 1_000_000)])
def test_a_server_takes_what_is_nested(cramped, depth):
    lists, objects = nested(depth, "[", "1", "]"), nested(depth, '{"a":', "1", "}")
    message = '{"role":"user","content":"a"}'
    with cramped.survives(growth_mib=96):
        for path, body in (
                *(("/v1/completions", text) for text in (lists, objects, "[" * depth, '{"a":' * depth, '[{"a":' * depth)),
                *((path, f'{{"prompt":{value}}}') for path in ("/v1/completions", "/tokenize") for value in (lists, objects)),
                ("/detokenize", f'{{"tokens":{lists}}}'),
                *(("/v1/completions", f'{{"prompt":"a","max_tokens":1,"{field}":{value}}}') for value in (lists, objects)
                  for field in ("stop", "logit_bias", "stream_options", "metadata", "user", "unknown")),
                *(("/v1/chat/completions", f'{{"max_tokens":1,"messages":{text}}}') for text in (
                    lists, objects, f'[{{"role":"user","content":{lists}}}]', f'[{{"role":"user","content":[{objects}]}}]',
                    f'[{{"role":"assistant","content":"a","tool_calls":{lists}}},{message}]')),
                *(("/v1/chat/completions", f'{{"max_tokens":1,"messages":[{message}],"{field}":{value}}}') for value in (lists, objects)
                  for field in ("chat_template_kwargs", "tools", "tool_choice", "response_format"))):
            answer = cramped.ask("POST", path, body.encode())
            assert answer.status == 400 or (answer.status == 200 and depth <= 1000), (path, body[:60], body[-60:], answer.status, answer.body[:200])
        text = json.dumps({"prompt": nested(depth, "(", "<|start|>", ")"), "add_special_tokens": False})
        assert cramped.ask("POST", "/tokenize", text.encode()).status == 200
