"""The demo model with templates that open its reasoning, or a call: what chats, responses and messages make of it, by the official SDKs."""
import base64
import json

import anthropic
import openai
import pytest

from opened_demo import write_opened_demo
from serving import Server

STORY = "Hi"  # of which it does not tell a long one
ASK = [{"role": "user", "content": STORY}]
SCHEMA = {"type": "object", "properties": {"green": {"type": "boolean"}}, "required": ["green"], "additionalProperties": False}
LONG = 300
FORMAT = {"type": "json_schema", "name": "frog", "schema": SCHEMA}


def served(opened):
    def made(tmp_path_factory):
        folder = tmp_path_factory.mktemp("model")
        write_opened_demo(folder, opened)
        server = Server("--max-model-len", 1024, "--served-model-name", "demo", model=folder)
        yield server
        assert server.process.poll() is None and server.stop() == 0
    return pytest.fixture(scope="module")(made)


thinking = served("<|channel|>analysis<|message|>")
calling = served("<|channel|>commentary to=functions.look <|constrain|>json<|message|>")


def openai_of(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def claude_of(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def respond(server, **more):
    return openai_of(server).responses.create(model="demo", **{"input": STORY, "max_output_tokens": LONG, "extra_body": {"seed": 1}} | more)


def message(server, **more):
    return claude_of(server).messages.create(model="demo", **{"max_tokens": LONG, "messages": ASK, "extra_body": {"seed": 1}} | more)


BOUND = {"thinking": {"type": "adaptive"}, "extra_body": {"seed": 1, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}}


@pytest.fixture(scope="module")
def thought(thinking):
    """The reasoning and the answer of a chat in a format."""
    choice = openai_of(thinking).chat.completions.create(model="demo", messages=ASK, max_tokens=LONG, seed=1,
                                                         response_format={"type": "json_schema", "json_schema": FORMAT}).choices[0]
    assert choice.finish_reason == "stop" and isinstance(json.loads(choice.message.content)["green"], bool)
    assert len(choice.message.reasoning_content.split()) > 3
    return choice.message.reasoning_content, choice.message.content


def test_no_answer_in_a_format_ends_in_its_reasoning(thinking):
    for seed in range(4):
        choice = openai_of(thinking).chat.completions.create(model="demo", messages=ASK, max_tokens=LONG, seed=seed, temperature=1,
                                                             response_format={"type": "json_schema", "json_schema": FORMAT}).choices[0]
        assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content)["green"], bool), choice


def test_a_response_tells_its_reasoning_in_an_item_before_its_message(thinking, thought):
    answer = respond(thinking, text={"format": FORMAT})
    reasoning, said = answer.output
    assert (reasoning.type, said.type) == ("reasoning", "message") and answer.status == "completed"
    assert [part.type for part in reasoning.content] == ["reasoning_text"] and reasoning.summary == [] and reasoning.encrypted_content is None
    assert (reasoning.content[0].text, answer.output_text) == thought
    assert 0 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens
    summed = respond(thinking, text={"format": FORMAT}, reasoning={"summary": "auto"}, include=["reasoning.encrypted_content"])
    reasoning = summed.output[0]
    assert [part.text for part in reasoning.summary] == [thought[0]] and not reasoning.content and summed.output_text == thought[1]
    wrapped = reasoning.encrypted_content.rpartition(".")[2]
    assert base64.urlsafe_b64decode(wrapped + "=" * (-len(wrapped) % 4)).decode() == thought[0]


@pytest.mark.parametrize("summary", [None, "auto"])
def test_a_responses_stream_tells_reasoning_in_its_own_events(thinking, thought, summary):
    events = list(respond(thinking, text={"format": FORMAT}, stream=True, reasoning={"summary": summary}))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kind, part = ("reasoning_summary_text", "reasoning_summary_part") if summary else ("reasoning_text", "content_part")
    names = [event.type for n, event in enumerate(events) if not n or event.type != events[n - 1].type]
    assert names == ["response.created", "response.in_progress",
                     "response.output_item.added", f"response.{part}.added", f"response.{kind}.delta", f"response.{kind}.done", f"response.{part}.done", "response.output_item.done",
                     "response.output_item.added", "response.content_part.added", "response.output_text.delta", "response.output_text.done", "response.content_part.done",
                     "response.output_item.done", "response.completed"]
    assert "".join(event.delta for event in events if event.type == f"response.{kind}.delta") == thought[0]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == thought[1]
    ids = {event.item_id for event in events if hasattr(event, "item_id")}
    assert ids == {item.id for item in events[-1].response.output} and len(ids) == 2


def test_reasoning_that_comes_back_encrypted_is_that_which_was_told(thinking):
    first = respond(thinking, text={"format": FORMAT}, store=False, reasoning={"summary": "auto"}, include=["reasoning.encrypted_content"])
    history = [{"role": "user", "content": STORY}, *(item.model_dump(exclude_none=True) for item in first.output), {"role": "user", "content": "And then?"}]
    count = lambda items: openai_of(thinking).responses.input_tokens.count(model="demo", input=items).input_tokens
    bare = [{key: value for key, value in item.items() if key != "encrypted_content"} for item in history]
    assert count(history) == count(bare) and respond(thinking, input=history, max_output_tokens=4).status == "incomplete"


def test_a_message_has_a_block_of_thinking_where_it_is_asked_for(thinking, thought):
    answer = message(thinking, **BOUND)
    thinks, text = answer.content
    assert (thinks.type, thinks.thinking, thinks.signature) == ("thinking", thought[0], "") and (text.type, text.text) == ("text", thought[1])
    assert answer.stop_reason == "end_turn"
    for without in ({"type": "disabled"}, {"type": "adaptive", "display": "omitted"}):
        assert [block.text for block in message(thinking, **BOUND | {"thinking": without}).content] == [thought[1]]
    turns = [*ASK, {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]}, {"role": "user", "content": "And then?"}]
    assert message(thinking, messages=turns, max_tokens=4).stop_reason == "max_tokens"


def test_a_messages_stream_tells_thinking_and_its_signature(thinking, thought):
    events = [event for event in message(thinking, **BOUND, stream=True)]
    deltas = [(event.index, event.delta.type) for event in events if event.type == "content_block_delta"]
    assert list(dict.fromkeys(deltas)) == [(0, "thinking_delta"), (0, "signature_delta"), (1, "text_delta")]
    assert "".join(event.delta.thinking for event in events if getattr(getattr(event, "delta", None), "type", "") == "thinking_delta") == thought[0]
    with claude_of(thinking).messages.stream(model="demo", max_tokens=LONG, messages=ASK, **BOUND) as stream:
        final = stream.get_final_message()
    assert (final.content[0].thinking, final.content[1].text) == thought


def test_an_answer_that_is_cut_in_its_reasoning_comes_back_as_it_was_told(thinking):
    """What clients keep of such an answer, they send with the next question."""
    cut = message(thinking, thinking={"type": "adaptive"}, max_tokens=5)
    assert [block.type for block in cut.content] == ["thinking"] and cut.stop_reason == "max_tokens"
    hidden = message(thinking, max_tokens=5, thinking={"type": "disabled"})
    assert hidden.content == []
    for told in (cut, hidden):
        turns = [*ASK, {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in told.content]}, {"role": "user", "content": "Go on"}]
        assert message(thinking, messages=turns, max_tokens=2).stop_reason == "max_tokens"
        assert claude_of(thinking).messages.count_tokens(model="demo", messages=turns).input_tokens > 10
    items = respond(thinking, max_output_tokens=5).output
    assert [item.type for item in items] == ["reasoning"] and items[0].status == "incomplete"
    again = respond(thinking, input=[*ASK, *(item.model_dump(exclude_none=True) for item in items), {"role": "user", "content": "Go on"}], max_output_tokens=2)
    assert again.status == "incomplete"
    chat = openai_of(thinking).chat.completions.create(model="demo", messages=ASK, max_tokens=5, seed=1).choices[0].message
    turns = [*ASK, chat.model_dump(exclude_none=True), {"role": "user", "content": "Go on"}]
    assert openai_of(thinking).chat.completions.create(model="demo", messages=turns, max_tokens=2).choices[0].finish_reason == "length"


TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}


def test_a_call_that_the_model_makes_of_itself_is_told_by_every_endpoint(calling):
    """Nothing is forced: the arguments are whatever the model writes, here a story and no JSON."""
    chat = openai_of(calling).chat.completions.create(model="demo", messages=ASK, max_tokens=LONG, seed=1, tools=[{"type": "function", "function": TOOL}]).choices[0]
    call, = chat.message.tool_calls
    assert chat.finish_reason == "tool_calls" and call.function.name == "look" and call.id.startswith("call_") and chat.message.content is None
    text = call.function.arguments
    chunks = [chunk.choices[0] for chunk in openai_of(calling).chat.completions.create(
        model="demo", messages=ASK, max_tokens=LONG, seed=1, tools=[{"type": "function", "function": TOOL}], stream=True)]
    first = chunks[0].delta
    assert first.role == "assistant" and first.content is None and "content" in first.model_fields_set and first.tool_calls[0].function.name == "look"
    assert "".join(each.function.arguments for chunk in chunks for each in chunk.delta.tool_calls or []) == text and chunks[-1].finish_reason == "tool_calls"
    answer = respond(calling, tools=[{"type": "function", **TOOL}])
    item, = answer.output
    assert (item.type, item.name, item.arguments, item.status, answer.status) == ("function_call", "look", text, "completed", "completed") and item.call_id.startswith("call_")
    events = [event for event in respond(calling, tools=[{"type": "function", **TOOL}], stream=True)]
    assert [event.arguments for event in events if event.type == "response.function_call_arguments.done"] == [text]
    told = message(calling, tools=[{"name": "look", "description": "Looks.", "input_schema": TOOL["parameters"]}])
    block, = told.content
    assert (block.type, block.name, block.input, told.stop_reason) == ("tool_use", "look", {"arguments": text}, "tool_use") and block.id.startswith("toolu_")
