"""litellm: one call for all APIs; here over chats, responses and messages."""
import json

import litellm

from checks import STORY, run_checks, url

ASK = {"messages": [{"role": "user", "content": STORY}], "api_key": "none", "num_retries": 0}
CHAT = ASK | {"model": "openai/demo", "api_base": url() + "/v1"}
MESSAGES = ASK | {"model": "anthropic/demo", "api_base": url()}
SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["frog", "bear"]}, "green": {"type": "boolean"}}, "required": ["kind", "green"],
          "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA}}]


def check_texts_whole_and_streamed():
    for ask in (CHAT, MESSAGES):
        whole = litellm.completion(**ask, max_tokens=12)
        assert whole.choices[0].message.content and whole.usage.completion_tokens == 12
        chunks = list(litellm.completion(**ask, max_tokens=12, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content


def check_an_answer_by_schema():
    answer = litellm.completion(**CHAT, max_tokens=1200, response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}})
    assert set(json.loads(answer.choices[0].message.content)) == {"kind", "green"}


def check_forced_calls():
    for ask in (CHAT, MESSAGES):
        for choice in ("required", {"type": "function", "function": {"name": "look"}}):
            call = litellm.completion(**ask, max_tokens=1200, tools=TOOLS, tool_choice=choice).choices[0].message.tool_calls[0]
            assert call.function.name == "look" and set(json.loads(call.function.arguments)) == {"kind", "green"}
            chunks = list(litellm.completion(**ask, max_tokens=1200, tools=TOOLS, tool_choice=choice, stream=True))
            joined = litellm.stream_chunk_builder(chunks, messages=ask["messages"]).choices[0].message.tool_calls
            assert set(json.loads(joined[0].function.arguments)) == {"kind", "green"}


def check_responses():
    answer = litellm.responses(model="openai/demo", input=STORY, api_base=url() + "/v1", api_key="none", max_output_tokens=12)
    assert answer.output[-1].content[0].text
    events = list(litellm.responses(model="openai/demo", input=STORY, api_base=url() + "/v1", api_key="none", max_output_tokens=12, stream=True))
    # Of a model that it has no price for, it asks for the whole response and makes the events itself.
    assert events[-1].type in ("response.incomplete", "response.completed"), events[-1].type
    assert events[-1].response.status == "incomplete" and events[-1].response.output[-1].content[0].text


if __name__ == "__main__":
    run_checks(globals())
