"""nibble against transformers on the cases of tests/data/parity, and nibble against itself under every way of batching.

The first half asks whether the model is the right one: compare.py decides, as fp32 with --dtype float32 and as bf16 by
default, which is what the cases' configs ask for. The second half asks for equal bits: a result depends on the prompt,
the parameters and the seed, and on nothing else.
"""
import json
import subprocess
import sys
from functools import lru_cache

import pytest

from nibble_program import PARITY, ROOT, generate, prompts_file

CASES = sorted(p.parent.name for p in PARITY.glob("*/expected.json"))
# Options and the class of compare.py that a run with them must meet.
DTYPES = {"fp32": ("--dtype", "float32"), "bf16": ()}
GREEDY = ("--max-tokens", 32, "--temperature", 0, "--ignore-eos", "--logprobs", 50, "--prompt-logprobs")


def expected(case):
    return json.loads((PARITY / case / "expected.json").read_text())


def prompts(case, kind="ids"):
    return [json.loads(line) for line in (PARITY / case / f"prompts_{kind}.jsonl").read_text().splitlines()]


@lru_cache(maxsize=None)
def greedy_lines(case, *dtype):
    """All prompts of a case in one batch, otherwise with the default options: what every other way is held against."""
    return generate(PARITY / case, "--prompts", PARITY / case / "prompts_ids.jsonl", *GREEDY, *dtype)


def bits(line):
    """What must not depend on how a prompt was run. JSON numbers are printed in full, so equal text is equal bits."""
    return {k: line[k] for k in ("case", "prompt_ids", "token_ids", "logprobs", "top_logprobs", "prompt_logprobs", "finish_reason") if k in line}


def judge(case, lines, tmp_path, kind="fp32"):
    output = tmp_path / "out.jsonl"
    output.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = subprocess.run([sys.executable, ROOT / "tests/parity/compare.py", output, "--data", PARITY, "--class", kind, "--only", case, "-v"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_cases():
    assert len(CASES) >= 7


@pytest.mark.some(3)
@pytest.mark.parametrize("case", CASES)
def test_the_judge_accepts_the_reference_and_refuses_a_wrong_one(case, tmp_path):
    reference = [{"case": f"{case}/{p['id']}", "token_ids": p["greedy_ids"], "top_logprobs": p["top"],
                  "prompt_ids": p["prompt_ids"], "prompt_logprobs": p["prompt_logprobs"]} for p in expected(case)["prompts"]]
    judge(case, reference, tmp_path)
    reference[2]["top_logprobs"][31][3][1] -= 0.006
    with pytest.raises(AssertionError, match="FAIL"):
        judge(case, reference, tmp_path)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_token_ids_give_what_transformers_gives(case, kind, tmp_path):
    lines = greedy_lines(case, *DTYPES[kind])
    judge(case, lines, tmp_path, kind)
    for line, prompt in zip(lines, prompts(case), strict=True):
        assert line["case"] == prompt["case"]
        assert line["prompt_ids"] == prompt["prompt_ids"]
        assert line["prompt_logprobs"][0] is None and len(line["prompt_logprobs"]) == len(prompt["prompt_ids"])
        assert line["finish_reason"] == "length"


@pytest.mark.some(6)
@pytest.mark.parametrize("case", CASES)
def test_the_default_is_what_the_config_asks_for(case):
    assert [bits(line) for line in greedy_lines(case)] == \
        [bits(line) for line in greedy_lines(case, "--dtype", "bfloat16", "--kv-cache-dtype", "bfloat16")]


@pytest.mark.some(6)
@pytest.mark.parametrize("case", CASES)
def test_text_and_messages_give_what_transformers_gives(case, tmp_path):
    lines = generate(PARITY / case, "--prompts", PARITY / case / "prompts_text.jsonl", *GREEDY, *DTYPES["fp32"])
    judge(case, lines, tmp_path)
    assert [bits(line) for line in lines] == [bits(line) for line in greedy_lines(case, *DTYPES["fp32"])]


# Every value of each option is in one of them, and threads differ from the default's in each.
WAYS = {
    "token by token": ("--max-num-batched-tokens", 1, "--threads", 1),
    "one at a time, a page in a chunk": ("--max-num-batched-tokens", 16, "--max-num-seqs", 1, "--threads", 2),
    "three at a time, uneven chunks": ("--max-num-batched-tokens", 31, "--max-num-seqs", 3, "--threads", 1),
    "several prompts in a chunk": ("--max-num-batched-tokens", 333, "--threads", 2),
    "even chunks": ("--max-num-batched-tokens", 64, "--threads", 1),
}
# float32 shares all but the products' arithmetic with bfloat16: the two farthest from the default suffice.
RUNS = [("bf16", way) for way in WAYS] + [("fp32", way) for way in list(WAYS)[:3:2]]


@pytest.mark.some(19)
@pytest.mark.parametrize("kind,way", RUNS, ids=lambda part: part)
@pytest.mark.parametrize("case", CASES)
def test_bits_do_not_depend_on_how_prompts_are_batched(case, kind, way):
    lines = generate(PARITY / case, "--prompts", PARITY / case / "prompts_ids.jsonl", *GREEDY, *DTYPES[kind], *WAYS[way])
    assert [bits(line) for line in lines] == [bits(line) for line in greedy_lines(case, *DTYPES[kind])]


@pytest.mark.some(6)
@pytest.mark.parametrize("number,case", list(enumerate(CASES)), ids=str)
def test_a_prompt_alone_gives_the_bits_of_the_batch(number, case):
    """Another prompt of each case: with all cases each kind of prompt was alone."""
    given = prompts(case)
    prompt, want = given[number % len(given)], greedy_lines(case)[number % len(given)]
    with prompts_file([prompt]) as file:
        [line] = generate(PARITY / case, "--prompts", file.name, *GREEDY)
    assert bits(line) == bits(want)


def test_order_of_the_prompts_does_not_matter():
    case = "deep_shards"
    with prompts_file(reversed(prompts(case))) as file:
        lines = generate(PARITY / case, "--prompts", file.name, *GREEDY)
    assert [bits(line) for line in reversed(lines)] == [bits(line) for line in greedy_lines(case)]


SAMPLED = {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "min_p": 0.01, "seed": 7, "max_tokens": 24, "logprobs": 5, "ignore_eos": True}


@pytest.mark.parametrize("case", ["example", "deep_shards"])
def test_a_seeded_sample_is_the_same_alone_and_among_others(case):
    given = [p | SAMPLED for p in prompts(case)[2:4]]
    others = [p | {"temperature": 1.3, "seed": 100 + i, "max_tokens": 40} for i, p in enumerate(prompts(case))]
    alone = []
    for p in given:
        with prompts_file([p]) as file:
            alone += generate(PARITY / case, "--prompts", file.name)
    for mixed, options in (([others[0], given[0], *others[1:5], given[1], *others[5:]], ()),
                           ([*given, *others], ("--max-num-seqs", 2, "--max-num-batched-tokens", 17, "--threads", 2))):
        with prompts_file(mixed) as file:
            lines = generate(PARITY / case, "--prompts", file.name, *options)
        assert len(lines) == len(mixed)
        found = [bits(line) for line, p in zip(lines, mixed) if p in given]
        assert found == [bits(line) for line in alone]


def test_another_seed_gives_another_sample():
    with prompts_file([prompts("example")[2] | SAMPLED | {"seed": s} for s in range(6)]) as file:
        lines = generate(PARITY / "example", "--prompts", file.name)
    assert len({tuple(line["token_ids"]) for line in lines}) == 6


@pytest.mark.some(6)
@pytest.mark.parametrize("case", CASES)
def test_tokens_past_the_end_token_need_ignore_eos(case):
    """Without --ignore-eos a greedy line ends at the first end-of-text id, which is counted; ids before it are the same."""
    ends = {404, 401, 414}
    lines = generate(PARITY / case, "--prompts", PARITY / case / "prompts_ids.jsonl", "--max-tokens", 32, "--temperature", 0)
    for line, full in zip(lines, greedy_lines(case), strict=True):
        cut = next((i for i, t in enumerate(full["token_ids"]) if t in ends), None)
        want = full["token_ids"] if cut is None else full["token_ids"][:cut + 1]
        assert line["token_ids"] == want
        assert line["finish_reason"] == ("length" if cut is None else "stop")
