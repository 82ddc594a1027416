"""The official anthropic SDK: messages, tools, streams, counted tokens, models."""
from typing import Literal

import anthropic
from pydantic import BaseModel

from checks import STORY, run_checks, url

CLIENT = anthropic.Anthropic(base_url=url(), api_key="none", max_retries=0)
ASK = [{"role": "user", "content": STORY}]
TOOLS = [{"name": "look", "description": "Looks at an animal.", "cache_control": {"type": "ephemeral"},
          "input_schema": {"type": "object", "properties": {"animal": {"enum": ["frog", "bear"]}, "closely": {"type": "boolean"}},
                           "required": ["animal", "closely"], "additionalProperties": False}}]


class Animal(BaseModel, extra="forbid"):
    kind: Literal["frog", "bear", "cat"]
    green: bool


def check_a_message_and_its_stream():
    whole = CLIENT.messages.create(model="demo", max_tokens=12, messages=ASK, system="Be short.", extra_body={"seed": 5})
    with CLIENT.messages.stream(model="demo", max_tokens=12, messages=ASK, system="Be short.", extra_body={"seed": 5}) as stream:
        text = "".join(stream.text_stream)
    assert text == whole.content[-1].text and stream.get_final_message().usage.output_tokens == 12
    assert whole._request_id


def check_forced_calls_whole_and_streamed():
    for choice in ({"type": "any"}, {"type": "tool", "name": "look", "disable_parallel_tool_use": True}):
        ask = {"model": "demo", "max_tokens": 1200, "messages": ASK, "tools": TOOLS, "tool_choice": choice, "extra_body": {"seed": 5}}
        whole = CLIENT.messages.create(**ask)
        call = next(block for block in whole.content if block.type == "tool_use")
        assert call.input["animal"] in ("frog", "bear") and isinstance(call.input["closely"], bool)
        with CLIENT.messages.stream(**ask) as stream:
            events = list(stream)
        assert next(block for block in stream.get_final_message().content if block.type == "tool_use").input == call.input
        assert any(event.type == "input_json" for event in events)
        back = [{"type": "tool_result", "tool_use_id": block.id, "content": "green"} for block in whole.content if block.type == "tool_use"]
        turns = [*ASK, {"role": "assistant", "content": whole.content}, {"role": "user", "content": back}]
        assert CLIENT.messages.create(model="demo", max_tokens=8, messages=turns, tools=TOOLS, tool_choice={"type": "none"}).content[-1].text


def check_parse_gives_the_model():
    parsed = CLIENT.messages.parse(model="demo", max_tokens=1200, messages=ASK, output_format=Animal)
    assert isinstance(parsed.parsed_output, Animal)


def check_beta_features_that_ask_for_nothing_are_taken():
    answer = CLIENT.beta.messages.create(model="demo", max_tokens=8, messages=ASK, betas=["context-management-2025-06-27", "unknown-1"],
                                         context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})
    assert answer.stop_reason == "max_tokens"


def check_counting_and_models():
    assert CLIENT.messages.count_tokens(model="demo", messages=ASK, tools=TOOLS).input_tokens > CLIENT.messages.count_tokens(model="demo", messages=ASK).input_tokens
    models = list(CLIENT.models.list())
    assert [model.id for model in models] == ["demo"] and models[0].created_at.year > 2000
    assert CLIENT.models.retrieve("demo").display_name == "demo"


def check_errors_are_its_own():
    try:
        CLIENT.messages.batches.list()
        raise AssertionError("batches are not served")
    except anthropic.NotFoundError as error:
        assert "batches" in error.body["error"]["message"] and error.body["type"] == "error"


if __name__ == "__main__":
    run_checks(globals())
