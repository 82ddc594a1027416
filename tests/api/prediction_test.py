"""Predicted outputs: what a client foresees of an answer changes no token of it, and usage counts what held."""
import json

import pytest

CHAT = "/v1/chat/completions"
ASKED = {"messages": [{"role": "user", "content": "Tell me a story about a frog"}], "max_tokens": 60, "temperature": 0,
         "logprobs": True, "top_logprobs": 2}


def answer(server, **more):
    status, told, _ = server.ask(CHAT, ASKED | more)
    assert status == 200, told
    return told["choices"], told["usage"]


def predicted(content):
    return {"type": "content", "content": content}


@pytest.fixture(scope="module")
def plain(server):
    choices, usage = answer(server)
    assert "accepted_prediction_tokens" not in usage["completion_tokens_details"]
    return choices


def test_one_that_holds_comes_several_tokens_a_step(server, plain):
    content = plain[0]["message"]["content"]
    for prediction in (predicted(content), predicted([{"type": "text", "text": content[:20]}, {"type": "text", "text": content[20:]}])):
        choices, usage = answer(server, prediction=prediction)
        assert choices == plain
        assert usage["completion_tokens_details"]["accepted_prediction_tokens"] > 25


@pytest.mark.parametrize("content", ["", "Something else entirely, said twice. Something else entirely, said twice.", "\x00\U0001f438", "a" * 100_000])
def test_one_that_fails_changes_nothing(server, plain, content):
    choices, usage = answer(server, prediction=predicted(content))
    assert choices == plain
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] < 10


def test_streams_and_choices_have_it_too(server, plain):
    content = plain[0]["message"]["content"]
    body = ASKED | {"prediction": predicted(content), "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    texts, usage = {0: "", 1: ""}, None
    for event in server.stream(CHAT, body)[0]:
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == {0: content, 1: content}
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] > 25


def test_the_official_client_sends_it(client, plain):
    content = plain[0]["message"]["content"]
    told = client.chat.completions.create(model="demo", messages=ASKED["messages"], max_tokens=60, temperature=0, prediction=predicted(content))
    assert told.choices[0].message.content == content
    assert told.usage.completion_tokens_details.accepted_prediction_tokens > 25
    assert told.usage.completion_tokens_details.rejected_prediction_tokens >= 0


@pytest.mark.parametrize("wrong", [5, "x", {}, {"type": "content"}, {"type": "text", "content": "x"}, predicted(5), predicted([{"type": "image_url"}])])
def test_what_is_no_text_is_refused(server, wrong):
    status, told, _ = server.ask(CHAT, ASKED | {"prediction": wrong})
    assert status == 400 and told["error"]["param"].startswith("prediction"), told


def test_metrics_count_drafts(server):
    def counted():
        return {name: float(line.split()[-1]) for line in server.get("/metrics")[1].splitlines()
                for name in ("draft", "accepted") if line.startswith(f"vllm:spec_decode_num_{name}_tokens_total")}

    before = counted()
    choices, _ = answer(server, max_tokens=250, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "properties": {"a_name_that_is_long": {"enum": ["one value"]}}, "required": ["a_name_that_is_long"], "additionalProperties": False}}})
    assert json.loads(choices[0]["message"]["content"]) == {"a_name_that_is_long": "one value"}
    after = counted()
    assert after["draft"] > before["draft"] and after["accepted"] >= before["accepted"]
