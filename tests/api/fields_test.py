"""Hostile values in every field: refused by name, or answered; never the server's fault."""
import http.client
import json
import random

import pytest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HOSTILE = [-1, 2**31, 2**63, 1e308, "5", True]


class Line:
    """One kept connection, as a client's pool would use it."""

    def __init__(self, server):
        self.connection = http.client.HTTPConnection(*server.address, timeout=60)

    def ask(self, path, body):
        self.connection.request("POST", path, body if isinstance(body, (bytes, str)) else json.dumps(body), {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        data = answer.read()
        return answer.status, data if answer.headers["Content-Type"].startswith("text/event-stream") else json.loads(data)


@pytest.fixture(scope="module")
def line(server):
    return Line(server)


@pytest.fixture(scope="module")
def vocabulary(server):
    """Ids from 0 on that the server takes: found by asking."""
    low, high = 1, 1 << 20
    while low < high:
        middle = (low + high) // 2
        status = server.ask(TEXT, {"prompt": [middle], "max_tokens": 1})[0]
        low, high = (middle + 1, high) if status == 200 else (low, middle)
    return low


def test_ids_outside_the_vocabulary_are_named(line, vocabulary):
    places = {"prompt": lambda v: {"prompt": [1, v]}, "stop_token_ids": lambda v: {"prompt": "a", "stop_token_ids": [v]}}
    for field, body in places.items():
        for value in [*HOSTILE, vocabulary, None, 1.5, [], {}]:
            status, answer = line.ask(TEXT, body(value) | {"max_tokens": 1})
            assert status == 400 and answer["error"]["param"].startswith(field), (field, value, answer)
        assert line.ask(TEXT, body(vocabulary - 1) | {"max_tokens": 1})[0] == 200
    for value in [-1, vocabulary, 2**31, 2**63, "1e3", "", " 1", "01", "+1", "true", "null", "0x1", "1" * 500]:
        status, answer = line.ask(TEXT, {"prompt": "a", "max_tokens": 1, "logit_bias": {str(value): 1}})
        assert status == 400 and answer["error"]["param"] == "logit_bias", value
    for value in [-1, vocabulary, 2**31, 2**63, 1e308, "5", True, None]:
        status, answer = line.ask("/detokenize", {"tokens": [value]})
        assert status == 400 and answer["error"]["param"].startswith("tokens"), value


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_every_number_of_the_description_is_held_to_its_range(server, line, path):
    described = json.loads(server.get("/openapi.json")[1])["components"]["schemas"]
    schema = described["ChatCompletionRequest" if path == CHAT else "CompletionRequest"]["properties"]
    # Whatever a field allows, the answer has one token.
    plain = {"messages": [{"role": "user", "content": "a"}]} if path == CHAT else {"prompt": "a"}
    plain |= {"logit_bias": {"5": 100}, "stop_token_ids": [5], "temperature": 0}
    numbers = {name: field for name, field in schema.items() if set(field.get("type", [])) & {"integer", "number"}}
    assert len(numbers) >= 12
    assert all({"minimum", "exclusiveMinimum"} & set(field) and "maximum" in field for field in numbers.values())
    for name, field in numbers.items():
        for value in [*HOSTILE, 2**63 - 1, -(2**63) - 1, 0.5, 0, [], -1e308, 5e-324]:
            status, answer = line.ask(path, {"max_tokens": 2} | plain | {name: value})
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            whole = number and value == int(value)
            fits = number and ("integer" not in field["type"] or whole) and (
                field.get("minimum", value) <= value <= field.get("maximum", value)) and value > field.get("exclusiveMinimum", -float("inf"))
            assert status in (200, 400), (name, value, answer)
            if not fits:
                assert status == 400 and answer["error"]["param"].startswith(name), (name, value, answer)


def value_of(source, depth=0):
    kind = source.randrange(12 if depth < 3 else 9)
    if kind < 3:
        return source.choice([0, -1, 1, 2, 5, 127, 128, 129, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30])
    if kind < 5:
        return source.choice([0.0, -0.0, 0.5, 1.0, 1.5, -2.0, 2.0000001, 1e-320, 1e308, -1e308, 1e15])
    if kind < 7:
        return source.choice(["", "a", "5", "auto", "none", "text", "\0", "\ud83e\udd8a", "x" * 300, "<|end|>", "-1", "user", "assistant"])
    if kind < 9:
        return source.choice([None, True, False])
    if kind < 11:
        return [value_of(source, depth + 1) for _ in range(source.randrange(4))]
    return {source.choice(["0", "5", "type", "text", "role", "content", "include_usage", "a"]): value_of(source, depth + 1) for _ in range(source.randrange(3))}


def fuzz(server, line, count, seed):
    described = json.loads(server.get("/openapi.json")[1])["components"]["schemas"]
    source, taken = random.Random(seed), 0
    for _ in range(count):
        path = source.choice([CHAT, TEXT])
        names = list(described["ChatCompletionRequest" if path == CHAT else "CompletionRequest"]["properties"]) + ["unknown"]
        body = {"messages": [{"role": "user", "content": "a"}]} if path == CHAT else {"prompt": source.choice(["a", [1, 2], ["a", "b"]])}
        body |= {"max_tokens": 1, "ignore_eos": True}
        for name in source.sample(names, source.choice([1, 1, 1, 2, 3])):
            body[name] = value_of(source)
        # An answer without an end would be a long one.
        if not isinstance(body["max_tokens"], int) or isinstance(body["max_tokens"], bool) or body["max_tokens"] > 3:
            body["max_tokens"] = 2
        if isinstance(body.get("n"), int) and body["n"] > 3 and body["n"] < 129:
            body["n"] = 2
        status, answer = line.ask(path, body)
        assert status in (200, 400, 404), (body, answer)
        taken += status == 200
        if status == 400:
            assert set(answer["error"]) == {"message", "type", "param", "code"} and answer["error"]["message"], body
            assert answer["error"]["param"] is not None, (body, answer)
        if status == 200 and isinstance(answer, bytes):
            assert answer.endswith(b"data: [DONE]\n\n"), body
    return taken


def test_bodies_made_of_any_values_are_refused_or_answered(server, line):
    assert 60 < fuzz(server, line, 700, 1) < 640


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(10, 20))
def test_a_hundred_thousand_such_bodies(server, line, seed):
    fuzz(server, line, 10_000, seed)


def test_long_runs_of_one_letter_and_marks_are_tokenized_at_once(line):
    for run in ("a", "A", ".", " ", "\n", "漢", "👨‍👩‍👧", "ª", "a\u0301"):
        text = run * (50_000 // len(run))
        status, answer = line.ask("/tokenize", {"prompt": text})
        assert status == 200 and line.ask("/detokenize", {"tokens": answer["tokens"]}) == (200, {"prompt": text})
        status, answer = line.ask(TEXT, {"prompt": text, "max_tokens": 1})
        assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
