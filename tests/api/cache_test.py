"""Prefixes that are kept: they are counted, they are nobody else's, and they change no bit."""
import concurrent.futures

import pytest

from serving import Server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def cold():
    """The same model without kept prefixes."""
    server = Server("--max-model-len", 256, "--no-prefix-cache")
    yield server
    assert server.stop() == 0


def ask(server, salt, length=100, **more):
    status, answer, _ = server.ask(TEXT, {"prompt": [(7 * i + len(salt)) % 500 for i in range(length)], "max_tokens": 8, "seed": 3, "logprobs": 2,
                                          "cache_salt": salt} | more)
    assert status == 200, answer
    return answer


def test_a_prompt_asked_again_is_counted_as_cached_and_below_the_whole(server):
    first, again = ask(server, "counted"), ask(server, "counted")
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < 100 and first["choices"] == again["choices"]
    longer = ask(server, "counted", length=140)["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached <= longer <= 108
    assert ask(server, "counted", n=3)["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
    chunks, _ = server.stream(TEXT, {"prompt": [(7 * i + 7) % 500 for i in range(100)], "max_tokens": 2, "cache_salt": "counted", "stream_options": {"include_usage": True}})
    assert chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


def test_another_salt_shares_nothing(server):
    ask(server, "ours!")
    assert ask(server, "yours")["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert ask(server, "ours!")["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_kept_prefixes_change_no_bit_of_any_way_of_asking(server, cold):
    ways = [{}, {"n": 2}, {"echo": True}, {"temperature": 0}, {"repetition_penalty": 1.4, "presence_penalty": 0.5}, {"logit_bias": {"9": 4}}, {"min_p": 0.1}, {"stop": ["e"]}]
    lengths = [1, 31, 32, 33, 64, 100, 200]
    requests = [(length, way) for length in lengths for way in ways]
    expected = [ask(cold, "bits", length, **way)["choices"] for length, way in requests]
    for _ in range(2):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda request: ask(server, "bits", request[0], **request[1])["choices"], requests))
        assert found == expected
