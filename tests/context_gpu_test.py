"""A GPU's graphs, on the emulation of one: a context that outgrows the graph it began with."""
import pytest

from nibble_program import BINARY, PARITY
from serving import Server

EMULATED = BINARY.with_name("nibble_emulated")
pytestmark = pytest.mark.skipif(not EMULATED.exists(), reason="the emulation of a GPU is not built with sanitizers")
SHORT_CONTEXT = 2048  # positions: up to here one sequence alone has a graph and a kernel of its own
LIMITS = ("--max-model-len", 2200, "--max-num-seqs", 2, "--max-num-batched-tokens", 512, "--kv-cache-tokens", 5000)


def choices(server, *prompts):
    """Of each prompt, given as ids: tokens and log-probabilities."""
    status, answer, _ = server.ask("/v1/completions", {"prompt": prompts, "temperature": 0, "ignore_eos": True, "max_tokens": 12, "logprobs": 2,
                                                       "return_token_ids": True})
    assert status == 200, answer
    return [(choice["token_ids"], choice["logprobs"]) for choice in answer["choices"]]


@pytest.mark.long
def test_a_sequence_that_outgrows_its_short_context_has_the_bits_it_has_in_company():
    prompt = [i * 7919 % 200 + 3 for i in range(SHORT_CONTEXT - 6)]
    server = Server(*LIMITS, "--device", "cuda", model=PARITY / "example", program=EMULATED)
    try:
        [alone] = choices(server, prompt)
        assert len(alone[0]) == 12
        assert choices(server, prompt, prompt[:50])[0] == alone
    finally:
        assert server.stop() == 0
