"""The official openai SDK: chats, tools, parse(), responses and the helpers around streams."""
import json
from typing import Literal

import openai
from pydantic import BaseModel

from checks import STORY, run_checks, url

CLIENT = openai.OpenAI(base_url=url() + "/v1", api_key="none", max_retries=0)
ASK = [{"role": "user", "content": STORY}]


class Animal(BaseModel, extra="forbid"):
    kind: Literal["frog", "bear", "cat"]
    green: bool


class Look(BaseModel, extra="forbid"):
    """Looks at an animal."""
    animal: Literal["frog", "bear"]
    closely: bool


CHAT_TOOLS = [openai.pydantic_function_tool(Look)]
TOOLS = [openai.types.responses.FunctionToolParam(type="function", name="Look", description="Looks.", strict=True,
                                                  parameters=CHAT_TOOLS[0]["function"]["parameters"])]


def chat(**more):
    return CLIENT.chat.completions.create(model="demo", messages=ASK, seed=5, **{"max_tokens": 1200} | more)


def check_a_chat_and_its_stream():
    whole = chat(max_tokens=12)
    assert whole.choices[0].message.content and whole.usage.completion_tokens == 12
    chunks = list(chat(max_tokens=12, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole.choices[0].message.content


def check_parse_gives_the_model():
    parsed = CLIENT.chat.completions.parse(model="demo", messages=ASK, response_format=Animal, max_tokens=1200)
    assert isinstance(parsed.choices[0].message.parsed, Animal)


def check_the_stream_helper_parses():
    with CLIENT.chat.completions.stream(model="demo", messages=ASK, response_format=Animal, max_tokens=1200) as stream:
        kinds = {event.type for event in stream}
    assert "content.done" in kinds and isinstance(stream.get_final_completion().choices[0].message.parsed, Animal)


def check_forced_calls_whole_and_streamed():
    for choice in ("required", {"type": "function", "function": {"name": "Look"}}):
        answer = chat(tools=CHAT_TOOLS, tool_choice=choice, max_tokens=1200).choices[0]
        call = answer.message.tool_calls[0]
        assert call.function.name == "Look" and Look.model_validate_json(call.function.arguments) and call.id
        assert answer.finish_reason in ("tool_calls", "stop"), answer.finish_reason
        with CLIENT.chat.completions.stream(model="demo", messages=ASK, tools=CHAT_TOOLS, tool_choice=choice, max_tokens=1200, seed=5) as stream:
            events = list(stream)
        final = stream.get_final_completion().choices[0].message.tool_calls[0]
        assert final.function.arguments == call.function.arguments and isinstance(final.function.parsed_arguments, Look)
        assert any(event.type == "tool_calls.function.arguments.done" for event in events)


def check_a_tools_result_goes_back():
    call = chat(tools=CHAT_TOOLS, tool_choice="required", max_tokens=1200).choices[0].message
    turns = [*ASK, call.model_dump(exclude_none=True)] + [{"role": "tool", "tool_call_id": one.id, "content": "green"} for one in call.tool_calls]
    answer = CLIENT.chat.completions.create(model="demo", messages=turns, tools=CHAT_TOOLS, tool_choice="none", max_tokens=8)
    assert answer.choices[0].message.content and not answer.choices[0].message.tool_calls


def check_responses_parse_and_stream():
    parsed = CLIENT.responses.parse(model="demo", input=STORY, text_format=Animal, max_output_tokens=1200)
    assert isinstance(parsed.output_parsed, Animal) and parsed.status == "completed"
    with CLIENT.responses.stream(model="demo", input=STORY, text_format=Animal, max_output_tokens=1200) as stream:
        kinds = [event.type for event in stream]
    assert kinds[-1] == "response.completed" and isinstance(stream.get_final_response().output_parsed, Animal)


def check_responses_call_functions():
    for choice in ("required", {"type": "function", "name": "Look"}):
        first = CLIENT.responses.create(model="demo", input=STORY, tools=TOOLS, tool_choice=choice, max_output_tokens=1200)
        call = next(item for item in first.output if item.type == "function_call")
        assert call.name == "Look" and Look.model_validate_json(call.arguments)
        next_one = CLIENT.responses.create(model="demo", previous_response_id=first.id, max_output_tokens=8, tools=TOOLS, tool_choice="none",
                                           input=[{"type": "function_call_output", "call_id": one.call_id, "output": "green"}
                                                  for one in first.output if one.type == "function_call"])
        assert next_one.output_text
        with CLIENT.responses.stream(model="demo", input=STORY, tools=TOOLS, tool_choice=choice, max_output_tokens=1200) as stream:
            deltas = "".join(event.delta for event in stream if event.type == "response.function_call_arguments.delta")
        calls = [item for item in stream.get_final_response().output if item.type == "function_call"]
        assert deltas == "".join(one.arguments for one in calls) and json.loads(calls[0].arguments)


def check_a_background_stream_is_resumed():
    begun = CLIENT.responses.create(model="demo", input=STORY, max_output_tokens=12, background=True, stream=True)
    first = next(begun)
    begun.close()
    with CLIENT.responses.stream(response_id=first.response.id, starting_after=2) as rest:
        events = list(rest)
    assert events[-1].type == "response.incomplete" and events[-1].response.output_text


if __name__ == "__main__":
    run_checks(globals())
