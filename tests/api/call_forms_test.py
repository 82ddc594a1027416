"""Forced and strict calls in the forms of other families, end to end, with a model of random weights that spells every mark byte by byte."""
import json
from pathlib import Path

import jsonschema_rs
import pytest

from serving import Server

MODEL = Path(__file__).parents[1] / "data" / "parity" / "qwen3_moe_bf16"
SIGNS = {"json": "<tool_call>", "xml": "<tool_call><function=", "arguments": "<tool_call><arg_key>", "deepseek": "<｜tool▁call▁begin｜>",
         "fenced": "<｜tool▁call▁begin｜>```json", "kimi": "<|tool_call_argument_begin|>", "bare": "{\"name\": N, \"parameters\": A}"}
SCHEMA = {"type": "object", "properties": {"way": {"enum": ["in", "out"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99},
                                           "word": {"type": "string", "pattern": "^[a-c]{1,3}$"}, "at": {"$ref": "#/$defs/place"}},
          "required": ["way", "count", "word", "at"], "additionalProperties": False,
          "$defs": {"place": {"type": "object", "properties": {"x": {"enum": [1, 2]}, "y": {"type": ["boolean", "null"]}}, "required": ["x", "y"],
                              "additionalProperties": False}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
ASK = {"messages": [{"role": "user", "content": "Go"}], "tools": TOOLS, "tool_choice": "required", "temperature": 1, "max_tokens": 600,
       "parallel_tool_calls": False}


@pytest.fixture(scope="module", params=SIGNS)
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    for file in MODEL.iterdir():
        if file.name not in ("chat_template.jinja", "prompts_ids.jsonl", "prompts_text.jsonl", "expected.json"):
            (folder / file.name).symlink_to(file)
    template = "{# calls are written with %s #}{%% for message in messages %%}{{ message.role }}: {{ message.content }}\n{%% endfor %%}answer: " % SIGNS[request.param]
    (folder / "chat_template.jinja").write_text(template)
    server = Server("--max-model-len", 1024, model=folder)
    yield server
    assert server.process.poll() is None and server.stop() == 0


def message(server, **fields):
    status, answer, _ = server.ask("/v1/chat/completions", ASK | fields)
    assert status == 200, answer
    return answer["choices"][0]["message"], answer["choices"][0]["finish_reason"]


def test_a_forced_call_fits_its_schema_whole_and_streamed(server):
    for seed in range(2):
        whole, reason = message(server, seed=seed)
        assert reason == "tool_calls" and whole["content"] is None, whole
        call, = whole["tool_calls"]
        assert call["function"]["name"] == "look" and call["id"]
        jsonschema_rs.validate(SCHEMA, json.loads(call["function"]["arguments"]))
    events, done = server.stream("/v1/chat/completions", ASK | {"seed": 1})
    told = [delta for event in events for delta in event["choices"][0]["delta"].get("tool_calls", [])]
    assert done and "".join(delta["function"].get("arguments", "") for delta in told) == call["function"]["arguments"]


def test_several_calls_each_fit(server):
    whole, reason = message(server, seed=3, parallel_tool_calls=True, max_tokens=900)
    for call in whole["tool_calls"][: None if reason == "tool_calls" else -1]:
        jsonschema_rs.validate(SCHEMA, json.loads(call["function"]["arguments"]))


def test_a_cut_call_has_the_beginning_of_its_arguments(server):
    _, answer, _ = server.ask("/v1/chat/completions", ASK | {"seed": 1})
    whole = answer["choices"][0]["message"]
    cut, reason = message(server, seed=1, max_tokens=answer["usage"]["completion_tokens"] * 3 // 4)
    if cut.get("tool_calls"):
        assert reason == "length" and whole["tool_calls"][0]["function"]["arguments"].startswith(cut["tool_calls"][0]["function"]["arguments"])
    else:
        assert reason == "length" and not cut["content"]


def test_an_answer_in_a_format_is_that_or_a_call(server):
    answer, reason = message(server, seed=2, tool_choice="auto", guided_choice=["yes", "no"])
    if answer.get("tool_calls"):
        jsonschema_rs.validate(SCHEMA, json.loads(answer["tool_calls"][0]["function"]["arguments"]))
    else:
        assert answer["content"] in ("yes", "no") and reason == "stop"


def test_text_around_calls_has_its_log_probabilities(server):
    status, answer, _ = server.ask("/v1/chat/completions", ASK | {"tool_choice": "auto", "seed": 4, "max_tokens": 30, "logprobs": True})
    choice = answer["choices"][0]
    assert status == 200 and b"".join(bytes(token["bytes"]) for token in choice["logprobs"]["content"]).decode() == choice["message"]["content"]
    forced = server.ask("/v1/chat/completions", ASK | {"seed": 4, "logprobs": True})[1]["choices"][0]
    assert forced["logprobs"]["content"] == [] and forced["message"]["tool_calls"]
