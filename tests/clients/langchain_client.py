"""langchain-openai: invoke, stream, bind_tools and with_structured_output, over chats and over responses."""
from typing import Literal

import openai
from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from checks import STORY, run_checks, url


class Animal(BaseModel, extra="forbid"):
    """An animal."""
    kind: Literal["frog", "bear", "cat"]
    green: bool


class Look(BaseModel, extra="forbid"):
    """Looks at an animal."""
    animal: Literal["frog", "bear"]
    closely: bool


def model(**more):
    return ChatOpenAI(base_url=url() + "/v1", api_key="none", model="demo", max_retries=0, **{"max_tokens": 1200, "seed": 5} | more)


def check_invoke_and_stream():
    whole = model(max_tokens=12).invoke(STORY)
    assert whole.content and whole.usage_metadata["output_tokens"] == 12
    assert "".join(chunk.content for chunk in model(max_tokens=12).stream(STORY)) == whole.content


def check_structured_output_by_schema():
    for strict in (None, True):
        assert isinstance(model().with_structured_output(Animal, method="json_schema", strict=strict).invoke(STORY), Animal)


def check_structured_output_by_a_call():
    assert isinstance(model().with_structured_output(Animal, method="function_calling").invoke(STORY), Animal)


def check_structured_output_as_any_json():
    try:
        content = model(max_tokens=40).with_structured_output(None, method="json_mode", include_raw=True).invoke(STORY)["raw"].content
    except openai.LengthFinishReasonError as error:  # the demo does not come to an end
        content = error.completion.choices[0].message.content
    assert content.lstrip().startswith(("{", "["))


def check_bound_tools_are_called_and_answered():
    for choice in ("required", "any", "Look"):
        bound = model().bind_tools([Look], tool_choice=choice)
        answer = bound.invoke(STORY)
        assert answer.tool_calls[0]["name"] == "Look" and Look(**answer.tool_calls[0]["args"])
        joined = None
        for chunk in bound.stream(STORY):
            joined = chunk if joined is None else joined + chunk
        assert [call["args"] for call in joined.tool_calls] == [call["args"] for call in answer.tool_calls]
    results = [ToolMessage("green", tool_call_id=call["id"]) for call in answer.tool_calls]
    assert model(max_tokens=8).invoke([("human", STORY), answer, *results]).content


def check_responses():
    ask = model(use_responses_api=True, seed=None, max_tokens=1200)
    assert ask.invoke(STORY).text
    assert "".join(chunk.text for chunk in ask.stream(STORY))
    assert isinstance(ask.with_structured_output(Animal).invoke(STORY), Animal)


def check_responses_call_tools():
    answer = model(use_responses_api=True, seed=None).bind_tools([Look], tool_choice="required").invoke(STORY)
    assert Look(**answer.tool_calls[0]["args"])
    back = [("human", STORY), answer, *(ToolMessage("green", tool_call_id=call["id"]) for call in answer.tool_calls)]
    assert model(use_responses_api=True, seed=None, max_tokens=16).invoke(back).text


if __name__ == "__main__":
    run_checks(globals())
