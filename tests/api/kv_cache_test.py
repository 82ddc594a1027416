"""The KV cache as its clients meet it: reuse that changes no bit, room that is bounded, time that is bounded."""
import concurrent.futures
import re

import pytest

from serving import Server

TEXT = "Once upon a time a fox and a bear lived by the sea and told each other stories of the wood. " * 10


def ask(server, prompt, **fields):
    body = {"model": "demo", "prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 2, "ignore_eos": True}
    status, answer, _ = server.ask("/v1/completions", body | fields)
    assert status == 200, answer
    return answer


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def ids_of(server, text):
    return server.post("/tokenize", {"prompt": text})[1]["tokens"]


def metric(server, name):
    text = server.get("/metrics")[1]
    return float(re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.M).group(1))


def test_reuse_is_exact_to_the_page_and_changes_no_bit(server):
    ids = ids_of(server, TEXT)[:100]
    for length in (1, 16, 17, 48, 49, 100):
        prompt = ids[:length]
        cold = ask(server, prompt, cache_salt=f"cold {length}")
        assert cached(cold) == 0
        ask(server, ids, cache_salt="warm")
        warm = ask(server, prompt, cache_salt="warm")
        assert cached(warm) == (length - 1) // 16 * 16
        assert warm["choices"] == cold["choices"]


def test_a_scored_prompt_gets_the_same_numbers_cold_and_cached(server):
    ids = ids_of(server, TEXT)[:70]
    cold = ask(server, ids, echo=True, max_tokens=3, cache_salt="scored")
    again = ask(server, ids, echo=True, max_tokens=3, cache_salt="scored")
    assert again["choices"] == cold["choices"] and cached(again) == 0
    assert cached(ask(server, ids, cache_salt="scored")) == 64  # what it stored serves others


def test_choices_share_their_prompt_and_are_what_each_is_with_others(server):
    ids = ids_of(server, TEXT)[:65]
    four = ask(server, ids, n=4, temperature=1, seed=5, cache_salt="four")
    six = ask(server, ids, n=6, temperature=1, seed=5, cache_salt="six")
    assert four["choices"] == six["choices"][:4]
    assert len({choice["text"] for choice in four["choices"]}) > 1
    assert cached(four) == 0 and four["usage"]["prompt_tokens"] == 65


@pytest.fixture(scope="module")
def small():
    server = Server("--kv-cache-tokens", 400, "--max-num-seqs", 16, "--max-num-batched-tokens", 128)
    yield server
    assert server.stop() == 0


def test_a_prompt_beyond_the_cache_is_refused_and_smaller_ones_go_on(small):
    ids = ids_of(small, TEXT)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(ask, small, ids[i:i + 30]) for i in range(20)]
        status, answer, _ = small.ask("/v1/completions", {"model": "demo", "prompt": (ids * 20)[:600], "max_tokens": 1})
        assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
        assert len([each.result() for each in asked]) == 20


def test_answers_that_outgrow_the_cache_make_room_for_each_other_and_keep_their_bits(server, small):
    ids = ids_of(small, TEXT)

    def answers(where):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, where, ids[i:i + 40], max_tokens=60) for i in range(8)]
            return [each.result()["choices"] for each in asked]
    before = metric(small, "vllm:num_preemptions_total")
    assert answers(small) == answers(server)
    assert metric(small, "vllm:num_preemptions_total") > before
    assert metric(small, "vllm:kv_cache_usage_perc") == 0
    assert metric(small, "nibble:kv_pages_cached") > 0


def test_an_answer_that_takes_too_long_ends_with_an_error_of_its_own():
    server = Server("--request-timeout", 1, "--max-num-seqs", 2)
    try:
        body = {"model": "demo", "prompt": "a", "n": 64, "max_tokens": 2000, "ignore_eos": True}
        status, answer, headers = server.ask("/v1/completions", body)
        assert status == 504 and answer["error"]["code"] == "timeout"
        assert headers["X-Should-Retry"] == "false"  # the SDK would send it twice more
        events, done = server.stream("/v1/completions", body)
        assert not done and events[-1]["error"]["code"] == "timeout"
        assert ask(server, "a", max_tokens=1)["choices"][0]["finish_reason"] == "length"
    finally:
        server.stop()
