"""nibble serve as clients meet it: the official SDK, and bytes that no SDK would send."""
import json
import re
import signal
import socket
import subprocess
import threading
import time

import openai
import pytest

from nibble_program import BINARY, environment
from serving import Server
from terminal_session import TerminalSession

STORY = [{"role": "user", "content": "Tell me a story about a frog"}]


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    assert server.process.poll() is None, "nothing that a client sent ended it"
    assert server.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def chat(client, **more):
    return client.chat.completions.create(model="demo", messages=STORY, **{"max_tokens": 24, "seed": 5, "temperature": 0.7} | more)


def test_a_chat_is_answered_and_counted(client):
    answer = chat(client)
    [choice] = answer.choices
    assert choice.message.role == "assistant" and "frog" in choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 24 and answer.usage.total_tokens == answer.usage.prompt_tokens + 24
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_a_stream_says_the_same_as_a_whole_answer(client):
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices].count("length") == 1
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_bits_are_equal_alone_and_among_others(client):
    def told(answer):
        return answer.choices[0].message.content, [token.logprob for token in answer.choices[0].logprobs.content]

    alone = told(chat(client, logprobs=True, top_logprobs=2))
    answers = [None] * 24

    def ask(i):
        if i % 3 == 0:  # company of other lengths
            client.completions.create(model="demo", prompt="word " * (i + 1), max_tokens=i + 1)
        answers[i] = told(chat(client, logprobs=True, top_logprobs=2))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(answers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(answer == alone for answer in answers)


def test_choices_prompts_and_ids(client):
    answer = client.completions.create(model="demo", prompt=["Once upon", "The fox"], n=2, max_tokens=5, seed=1, logprobs=1,
                                       extra_body={"return_token_ids": True})
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        assert "".join(choice.logprobs.tokens) == choice.text and len(choice.model_extra["token_ids"]) == 5
    by_ids = client.completions.create(model="demo", prompt=[1, 2, 3], max_tokens=2)
    assert by_ids.usage.prompt_tokens == 3


def test_stop_strings_end_an_answer_and_are_not_shown(client):
    whole = chat(client, max_tokens=60).choices[0].message.content
    word = whole.split()[8]
    cut = chat(client, max_tokens=60, stop=[word])
    assert cut.choices[0].finish_reason == "stop" and cut.choices[0].message.content == whole[:whole.index(word)]


def test_mistakes_are_named_and_never_the_servers(server, client):
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt-4", messages=STORY)
    assert error.value.body["code"] == "model_not_found"
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, temperature=3)
    assert error.value.body["param"] == "temperature"
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, tools=[{"type": "python"}])
    assert error.value.body["param"] == "tools[0].type"
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="demo", prompt="word " * 5000)
    assert error.value.body["code"] == "context_length_exceeded"
    for body, code in ((b"{", "invalid_json"), (b"[]", "invalid_json"), (b'{"a":1,"a":2}', "invalid_json")):
        status, answer = server.post("/v1/completions", body)
        assert status == 400 and answer["error"]["code"] == code and set(answer["error"]) == {"message", "type", "param", "code"}
    assert server.post("/v1/completions", b"{}", content_type="text/plain")[0] == 415
    assert server.get("/nothing")[0] == 404
    assert b"405" in server.raw(b"DELETE /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").split(b"\r\n")[0]


def test_hostile_bytes_get_one_answer_and_a_closed_connection(server):
    for data, status in (
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 1000 + b"\r\n", 431),
    ):
        answer = server.raw(data)
        assert answer.split(b"\r\n")[0].split()[1] == str(status).encode(), data[:60]
        assert b"Connection: close" in answer and answer.count(b"HTTP/1.1") == 1


def test_requests_sent_ahead_by_a_half_closed_client_are_all_answered(server):
    answer = server.raw(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 3, half_close=True)
    assert answer.count(b'{"status":"ok"}') == 3


def test_clients_that_go_leave_no_work_behind(server, client):
    body = json.dumps({"prompt": "a", "max_tokens": 1900, "ignore_eos": True, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for _ in range(40):
        with socket.create_connection(server.address, timeout=30) as connection:
            connection.sendall(head + body)
            connection.recv(200)
    client.completions.create(model="demo", prompt="a", max_tokens=4)
    generated = re.search(r"(?m)^vllm:generation_tokens_total\S* (\S+)$", server.get("/metrics")[1])
    assert float(generated[1]) < 20_000  # of the 76,000 that they asked for


def test_a_text_survives_tokenize_and_detokenize(server):
    text = "Once upon a time, naïve 🦊 <|return|>"
    status, answer = server.post("/tokenize", {"prompt": text})
    assert status == 200 and answer["count"] == len(answer["tokens"])
    assert server.post("/detokenize", {"tokens": answer["tokens"]}) == (200, {"prompt": text})


def test_a_key_is_asked_for_when_one_is_set_and_health_needs_none():
    server = Server("--api-key", "secret", "--served-model-name", "tales")
    try:
        assert server.get("/v1/models")[0] == 401
        assert server.get("/v1/models", Authorization="Bearer wrong!")[0] == 401
        status, body = server.get("/v1/models", Authorization="Bearer secret")
        assert status == 200 and json.loads(body)["data"][0]["id"] == "tales"
        assert server.get("/v1/models/demo", Authorization="Bearer secret")[0] == 404
        assert server.get("/health")[0] == 200
    finally:
        assert server.stop() == 0


def test_more_choices_than_may_ever_wait_are_the_clients_mistake():
    server = Server("--max-queue", 3)
    try:
        for body in ({"prompt": "a", "n": 4}, {"prompt": ["a", "b"], "n": 2}, {"prompt": ["a"] * 4}):
            status, answer, _ = server.ask("/v1/completions", body | {"max_tokens": 1})
            assert status == 400 and answer["error"]["param"] == "n", "429 would have it asked again"
        assert server.ask("/v1/completions", {"prompt": "a", "n": 3, "max_tokens": 1})[0] == 200
    finally:
        assert server.stop() == 0


def test_told_to_end_it_finishes_what_runs():
    server = Server()
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    stream = chat(client, max_tokens=300, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    server.process.send_signal(signal.SIGTERM)
    last = [chunk.choices[0].finish_reason for chunk in stream][-1]
    assert last == "length"
    assert server.process.wait(timeout=60) == 0


def test_told_twice_it_ends_at_once():
    server = Server()
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    stream = chat(client, max_tokens=1900, n=8, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    server.process.send_signal(signal.SIGTERM)
    with pytest.raises(openai.APIError, match="goes down"):
        for chunk in stream:
            assert not any(choice.finish_reason for choice in chunk.choices), "none is answered to its end"
    assert server.process.wait(timeout=60) == 0


def held_up(lines):
    """What a start says to people: what was chosen, the weights, the cache, and how many requests go into it."""
    names = [line.split("  ")[0] for line in lines]
    assert names[0] == "device" and names[-4:] == ["memory", "weights", "KV cache", "concurrency"]
    assert re.fullmatch(r"weights {17}0\.03 GiB", lines[-3]) and re.fullmatch(r"KV cache {16}32,768 tokens", lines[-2])
    assert re.fullmatch(r"concurrency {13}16\.00x for 2,048 tokens a request, at most 16 in a step", lines[-1])


def test_a_start_on_a_terminal_shows_what_it_does_and_ends_with_the_url():
    with TerminalSession("serve", "demo", "--port", 0, columns=80) as terminal:
        terminal.expect("http://127.0.0.1:")
        terminal.pump(0.2)
        begin, bar, rest = terminal.written.partition("\r\x1b[K")
        assert rest.startswith("loading demo\r\x1b[K"), "drawn while it loads, and erased"
        *lines, url = rest.rpartition("\x1b[K")[2].splitlines()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        assert all(len(line) <= 80 for line in lines)
        held_up([line for line in lines if line[0] != " "])  # the others go on with what was too wide
        terminal.send("\x03")
        assert terminal.wait() == 0


def test_a_start_in_a_pipe_has_no_bar_and_the_url_alone_on_standard_output():
    process = subprocess.Popen([BINARY, "serve", "demo", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    url = process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and re.fullmatch(r"http://127\.0\.0\.1:\d+\n", url) and out == ""
    assert "\r" not in err and "\x1b" not in err and "loading" not in err
    held_up([line for line in err.splitlines() if " info " not in line])
