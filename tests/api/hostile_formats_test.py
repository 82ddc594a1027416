"""Formats, schemas and templates that were made to hurt: each is refused with its place, or served, in bounded time and memory."""
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
SECONDS = 60  # of a machine that others share; the budget is a second of one thread


def ask(server, timed=True, **fields):
    begin = time.monotonic()
    status, answer, _ = server.ask(TEXT, {"prompt": "a", "max_tokens": 1, **fields})
    assert not timed or time.monotonic() - begin < SECONDS, fields
    if status == 400:
        assert answer["error"]["param"] == next(iter(fields)) and len(answer["error"]["message"]) < 1000, answer
    return status


def broken_patterns(count):
    draw = random.Random(5)
    parts = ["a", "[a-", "[^", "]", "(", ")", "(?:", "(?=", "(?<=x", "(?P<n>", "\\", "\\b", "\\1", "\\u12", "\\p{", "{2}", "{2,1}", "{99999999999}", "*", "+", "?", "|", "^",
             "$", ".", "\x00", "é", "{,3}", "\\x4", "**", "foo**", "^+", "(?i)"]
    return ["".join(draw.choice(parts) for _ in range(draw.randint(1, 8))) for _ in range(count)]


def test_broken_patterns_grammars_and_schemas_end_nothing(server):
    patterns = broken_patterns(500)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda pattern: ask(server, timed=False, guided_regex=pattern), patterns))
        found += list(pool.map(lambda pattern: ask(server, timed=False, guided_json={"type": "string", "pattern": pattern}), patterns))
    assert set(found) == {200, 400} and found.count(400) > 500
    for grammar in ("root ::= a", "root ::= root \"a\"", "root ::= (\"a\"", "x ::= \"a\"", "root ::= \"a\" {2", "::=", "root ::= [z-a]", "\x00"):
        assert ask(server, guided_grammar=grammar) == 400, grammar
    for schema in ({"type": 5}, {"properties": []}, {"$ref": "https://example.com/a.json"}, {"$ref": "file:///etc/passwd"}, {"$ref": "#"}, {"$ref": "#/nowhere"},
                   {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, {"enum": 3}, {"pattern": "("}, {"minLength": -1}, {"not": {}}):
        assert ask(server, guided_json=schema) == 400, schema
    for schema in ("[]", "3", "{", "\"a\""):
        assert ask(server, guided_json=schema) == 400, schema


@pytest.mark.parametrize("depth", [10, 1000, 100_000, 1_000_000])
def test_nesting_is_refused_beyond_its_depth(server, depth):
    nested = {"guided_regex": "(" * depth + "a" + ")" * depth,
              "guided_grammar": "root ::= " + "(" * depth + '"a"' + ")" * depth,
              "guided_json": '{"items":' * depth + "{}" + "}" * depth}
    for field, text in nested.items():
        assert ask(server, **{field: text}) in ((200,) if depth == 10 else (400, 413)), (field, depth)
    body = b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":'
    body += b'{"items":' * depth + b"{}" + b"}" * depth + b"}}]}"
    status, answer, _ = server.ask(CHAT, body)
    assert status in ((200,) if depth == 10 else (400, 413)), answer


@pytest.mark.parametrize("depth", [10, 1000, 100_000, 1_000_000])
def test_arguments_of_earlier_calls_nest_as_deep_as_they_like(server, depth):
    """Those that are text are text, however deep; an object is refused beyond the depth of a body."""
    nested = '{"a":' * depth + "1" + "}" * depth
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": nested}}
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", "content": nested}]
    items = [{"role": "user", "content": "a"}, {"type": "function_call", "call_id": "a", "name": "f", "arguments": nested}, {"type": "function_call_output", "call_id": "a", "output": nested}]
    asked = [(CHAT, json.dumps({"messages": turns, "max_tokens": 1})), ("/v1/responses", json.dumps({"input": items, "max_output_tokens": 1}))]
    block = '{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":%s}]}],"max_tokens":1}'
    for path, body in [*asked, ("/v1/messages", block % nested)]:
        status, answer, _ = server.ask(path, body.encode())
        assert status in ((200,) if depth == 10 else (400, 413)), (path, answer)


def explosions():
    nest = {"type": "integer"}
    for _ in range(5):
        nest = {"oneOf": [nest, {"not": nest}, {"allOf": [nest, nest]}]}
    wide = {"allOf": [{"anyOf": [{"properties": {f"p{i}_{j}": {"const": j}}} for j in range(12)]} for i in range(12)]}
    many = {"type": "object", "patternProperties": {f"^[a-z]{{1,{i}}}x": {"type": "integer"} for i in range(1, 40)}}
    return [{"guided_regex": "(a{1,100000}){1,100000}"}, {"guided_regex": "((a*)*)*b" * 300}, {"guided_regex": "(?=(a|aa)+$)" * 30 + "a+"}, {"guided_json": nest}, {"guided_json": wide},
            {"guided_json": many}, {"guided_json": {"enum": [f"entry {i}" for i in range(10_000)]}}, {"guided_choice": [f"entry {i}" for i in range(10_000)]},
            {"guided_json": {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 1000}}, {"guided_json": {"type": "string", "pattern": "^(a|b|ab)*c{1,5000}$"}},
            {"guided_json": {"type": "array", "minItems": 4_000_000_000, "items": {"const": 1}}},
            {"guided_grammar": "root ::= " + " ".join(f"a{i}" for i in range(2000)) + "\n" + "\n".join(f"a{i} ::= a{i + 1} a{i + 1} | \"x\"" for i in range(2000)) + "\na2000 ::= \"y\""}]


def test_what_explodes_takes_bounded_time_and_others_go_on(server):
    hostile, waits = explosions(), []
    done = threading.Event()

    def stream():
        while not done.is_set():
            begin = time.monotonic()
            assert server.ask(TEXT, {"prompt": "Once", "max_tokens": 4})[0] == 200
            waits.append(time.monotonic() - begin)

    reader = threading.Thread(target=stream)
    reader.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(lambda fields: ask(server, **fields), hostile)) <= {200, 400}
    finally:
        done.set()
        reader.join()
    assert waits and max(waits) < SECONDS


def resident(server):
    return next(float(line.split()[1]) for line in server.get("/metrics")[1].splitlines() if line.startswith("process_resident_memory_bytes "))


@pytest.mark.parametrize("count", [pytest.param(1500, marks=pytest.mark.long), pytest.param(100_000, marks=pytest.mark.extended)])
def test_schemas_that_never_come_again_leave_memory_as_it_is(server, count):
    def send(number):
        properties = {f"p{count}_{number}_{i}": {"enum": [f"{number} {i} {j}" for j in range(4)]} for i in range(8)}
        assert ask(server, timed=False, guided_json={"type": "object", "properties": properties}) == 200

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, range(300)))
        before = resident(server)
        list(pool.map(send, range(300, count)))
    assert resident(server) - before < 64 << 20


def test_template_variables_reach_the_template_alone(server):
    for name in ("messages", "tools", "add_generation_prompt", "__class__", "self", "raise_exception", "strftime_now", "namespace", "range", "loop"):
        status, answer, _ = server.ask(CHAT, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "chat_template_kwargs": {name: "x" * 1000}})
        assert status in (200, 400), answer
        if status == 400:
            assert answer["error"]["param"].startswith("chat_template_kwargs"), answer
    for path, body in (("/v1/responses", {"input": "a", "max_output_tokens": 1}), ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})):
        plain, other = server.ask(path, body)[1], server.ask(path, body | {"chat_template": "{{ 1 }}", "chat_template_kwargs": {"messages": []}})
        assert other[0] == 200 and other[2]["X-Nibble-Ignored"] == "chat_template, chat_template_kwargs"
        assert sum(other[1]["usage"][key] for key in other[1]["usage"] if key.endswith("input_tokens")) == sum(plain["usage"][key] for key in plain["usage"] if key.endswith("input_tokens"))
    honest = json.dumps({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}).encode()
    assert server.ask(CHAT, honest)[0] == 200
