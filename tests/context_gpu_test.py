"""A GPU's graphs, on the emulation of one: a context that outgrows the graph it began with."""
import json
import subprocess

import pytest

from nibble_program import BINARY, PARITY

EMULATED = BINARY.with_name("nibble_emulated")
pytestmark = pytest.mark.skipif(not EMULATED.exists(), reason="the emulation of a GPU is not built with sanitizers")
SHORT_CONTEXT = 2048  # positions: up to here one sequence alone has a graph and a kernel of its own
LIMITS = ("--max-model-len", 2200, "--max-num-seqs", 2, "--max-num-batched-tokens", 512, "--kv-cache-tokens", 5000)


def answers(*prompts):
    """Of each prompt, given as ids: tokens and log-probabilities."""
    lists = [part for prompt in prompts for part in ("--prompt-ids", ",".join(map(str, prompt)))]
    command = [EMULATED, "generate", PARITY / "example", *lists, "--device", "cuda", "--temperature", 0, "--ignore-eos", "--max-tokens", 12, "--logprobs", 2, "--json", *LIMITS]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return [{key: answer[key] for key in ("token_ids", "logprobs", "top_logprobs")} for answer in map(json.loads, done.stdout.splitlines())]


def test_a_sequence_that_outgrows_its_short_context_has_the_bits_it_has_in_company():
    prompt = [i * 7919 % 200 + 3 for i in range(SHORT_CONTEXT - 6)]
    [alone] = answers(prompt)
    assert len(alone["token_ids"]) == 12
    assert answers(prompt, prompt[:50])[0] == alone
