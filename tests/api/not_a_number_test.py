"""A model that gives no number for one request: that one fails, and what runs beside it has the same bits as ever."""
import concurrent.futures
import json
import shutil
import struct

import pytest

from nibble_program import PARITY
from serving import Server

TEXT = "/v1/completions"
POISON = 9  # a token whose embedding is not a number


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("poisoned") / "model"
    shutil.copytree(PARITY / "example", folder)
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    embedding = json.loads(data[8:8 + size])["model.embed_tokens.weight"]
    rows, width = embedding["shape"]
    begin = 8 + size + embedding["data_offsets"][0] + POISON * width * 2
    assert embedding["dtype"] == "BF16" and POISON < rows
    data[begin:begin + width * 2] = b"\xc0\x7f" * width
    file.write_bytes(data)
    server = Server("--max-num-batched-tokens", 24, model=folder)
    yield server
    assert server.process.poll() is None
    assert server.stop() == 0


def healthy(server, i, **more):
    return server.ask(TEXT, {"prompt": [20 + i % 7, 30, 40 + i % 5] * (1 + i % 4), "max_tokens": 12, "seed": i, "logprobs": 2, "ignore_eos": True, "logit_bias": {str(POISON): -100}} | more)


def test_only_the_poisoned_request_fails_and_its_company_keeps_its_bits(server):
    alone = [healthy(server, i)[1]["choices"] for i in range(12)]
    for _ in range(3):  # pages that held what is no number are used again
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            asked = []
            for i in range(12):
                asked.append(pool.submit(healthy, server, i))
                asked.append(pool.submit(server.ask, TEXT, {"prompt": [5] * (i * 3) + [POISON] + [6] * (i % 3), "max_tokens": 8, "n": 1 + i % 2}))
            found = [future.result() for future in asked]
        for status, answer, headers in found[1::2]:
            assert headers["X-Should-Retry"] == "false"  # asked again, it would fail again
            assert status == 500 and answer["error"]["type"] == "server_error" and "number" in answer["error"]["message"]
        assert [answer["choices"] for _, answer, _ in found[0::2]] == alone


def test_a_stream_that_fails_says_so_and_is_not_done(server):
    events, done = server.stream(TEXT, {"prompt": [20, 30], "max_tokens": 8, "logit_bias": {str(POISON): 100}, "temperature": 0, "return_token_ids": True})
    assert not done and "error" in events[-1] and set(events[-1]["error"]) == {"message", "type", "param", "code"}
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1) and len(events) > 1
    assert server.get("/health")[0] == 200
