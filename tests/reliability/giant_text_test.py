"""Texts that stopped other servers: long runs, giant words, bytes that are no text, and prompts that share their beginning."""
import json
import threading
import time

import pytest

from watched_server import SANITIZED, Answer, counts, read_all, request_bytes

RUNS = {"a": "a", "A": "A", "full stops": ".", "spaces": " ", "line feeds": "\n", "CJK": "\u6f22", "emoji with joiners": "\U0001f469\u200d",
        "ordinal indicators": "\u00aa", "marks": "e\u0301\u0327", "digits": "7", "mixed": "aA1 \n"}


@pytest.mark.parametrize("size", counts(200_000, 4_000_000))
def test_long_runs_of_one_character_are_tokenized_in_linear_time(server, size):
    with server.survives(growth_mib=96):
        for name, text in RUNS.items():
            data = json.dumps({"prompt": (text * size)[:size]}, ensure_ascii=False).encode()
            begin = time.monotonic()
            answer = server.ask("POST", "/tokenize", data)
            assert answer.status == (200 if len(data) <= 4 << 20 else 413), name
            if not SANITIZED:
                assert time.monotonic() - begin < 10 + len(data) / 100_000, name  # far beyond; quadratic work takes minutes


def test_while_a_giant_word_is_tokenized_others_are_answered(server):
    word = json.dumps({"prompt": "abcdefghij" * 100_000}).encode()
    with server.survives(growth_mib=96):
        done = threading.Event()

        def tokenize():
            assert server.ask("POST", "/tokenize", word).status == 200
            done.set()

        threads = [threading.Thread(target=tokenize) for _ in range(4)]
        for thread in threads:
            thread.start()
        answered = 0
        while not done.is_set():
            assert server.ask("GET", "/health").status == 200
            answered += 1
        for thread in threads:
            thread.join()
        assert answered > 0


def test_more_giant_texts_than_may_wait_are_sent_away(server):
    """Their last bytes come all at once, so that no tokenizer is as fast."""
    waits, clients = 256, 400  # the default of --max-queue
    request = request_bytes("POST", "/tokenize", json.dumps({"prompt": "abcdefghij" * 10_000}).encode(), Connection="close")
    with server.survives(growth_mib=96):
        connections = [server.connect() for _ in range(clients)]
        for connection in connections:
            connection.sendall(request[:-1])
        for connection in connections:
            connection.sendall(request[-1:])
        answers = [Answer(read_all(connection)) for connection in connections]
        for connection in connections:
            connection.close()
        refused = [answer for answer in answers if answer.status == 429]
        assert all(answer.headers["retry-after"] == "1" and answer.json()["error"]["code"] == "queue_full" for answer in refused)
        served = [answer for answer in answers if answer.status == 200]
        assert len(refused) + len(served) == clients and len(served) >= waits and len(refused) > 0


def lead_sweep(step):
    """Bytes that may or may not be UTF-8: all of one and two, then every lead of three and four with sampled followers."""
    yield from ([byte] for byte in range(256))
    yield from ([first, second] for first in range(256) for second in range(0, 256, step))
    for lead in range(0xE0, 0x100):
        yield from ([lead, second, third, *rest] for second in range(0x70, 0xD0, step)
                    for third in (0x41, 0x7F, 0x80, 0x8F, 0x90, 0xA0, 0xBF, 0xC0, 0xFF)
                    for rest in ([], [0x41], [0x7F], [0x80], [0xBF], [0xC0], [0xFF], [0x80, 0x80]))


@pytest.mark.parametrize("step", counts(61, 1))
def test_bytes_that_are_no_utf8_are_refused_and_all_others_survive(server, step):
    with server.survives(), server.connect() as connection:
        stream, asked = connection.makefile("rb"), 0
        for sequence in lead_sweep(step):
            raw = bytes(sequence)
            try:
                text = raw.decode()
            except UnicodeDecodeError:
                text = None
            if set(raw) & set(b'"\\') or (text and min(text) < " "):
                continue  # JSON has its own say in these
            connection.sendall(request_bytes("POST", "/tokenize", b'{"prompt":"' + raw + b'"}'))
            status = int(stream.readline().split()[1])
            length = 0
            while (line := stream.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            json.loads(stream.read(length))
            assert status == (200 if text is not None else 400), raw
            asked += 1
        print(f"{asked} sequences of bytes")


def test_a_model_that_emits_any_byte_streams_valid_text_that_equals_the_whole(server):
    tokens = server.ask("POST", "/tokenize", {"prompt": "\u6f22\U0001f98a\u00e9 a"}).json()["tokens"]
    with server.survives():
        for seed, some in enumerate((tokens, tokens[:2], tokens[1:3], [tokens[0]], list(range(64)), list(range(128, 256)))):
            body = {"prompt": "a", "max_tokens": 40, "seed": seed, "ignore_eos": True, "logit_bias": {str(token): 100 for token in some}}
            whole = server.ask("POST", "/v1/completions", body).json()["choices"][0]["text"]
            answer = server.ask("POST", "/v1/completions", body | {"stream": True})
            assert "".join(event["choices"][0]["text"] for event in answer.events() if event) == whole
            whole.encode()  # no lone surrogates


def test_salts_keep_prompts_apart_and_change_no_answer(server):
    prompt = "Once upon a time there was a little frog who lived by a pond and sang every night to the moon. " * 3
    with server.survives():
        answers = {}
        for salt in ("one", "one", "two", "two", None):
            body = {"prompt": prompt, "max_tokens": 12, "seed": 4, "logprobs": 2} | ({"cache_salt": salt} if salt else {})
            answer = server.ask("POST", "/v1/completions", body).json()
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached < answer["usage"]["prompt_tokens"]
            if salt not in answers:
                assert cached == 0, "found what another salt had left"
            answers.setdefault(salt, answer["choices"])
            assert answer["choices"] == answers["one"]
