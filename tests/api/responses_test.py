"""/v1/responses as the official SDK speaks it: whole, streamed, stored, gone on from, in the background."""
import time

import openai
import pytest

STORY = "Tell me a story about a frog"


def respond(client, **more):
    return client.responses.create(model="demo", **{"input": STORY, "max_output_tokens": 8, "extra_body": {"seed": 5}} | more)


def test_a_response_parses_and_is_what_a_chat_would_answer(client):
    answer = respond(client, instructions="Be short.", metadata={"a": "b"})
    chat = client.chat.completions.create(model="demo", max_tokens=8, seed=5, messages=[{"role": "system", "content": "Be short."}, {"role": "user", "content": STORY}])
    assert answer.output_text == chat.choices[0].message.content and answer.object == "response"
    assert answer.usage.total_tokens == chat.usage.total_tokens and answer.usage.input_tokens == chat.usage.prompt_tokens
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.metadata == {"a": "b"} and answer.instructions == "Be short." and answer.max_output_tokens == 8
    parts = respond(client, instructions="Be short.", input=[{"role": "user", "content": [{"type": "input_text", "text": STORY}]}])
    assert parts.output_text == answer.output_text


def test_a_streams_events_are_numbered_and_join_to_the_whole(client):
    whole = respond(client)
    events = list(respond(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    names = [event.type for event in events]
    assert names[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    assert names[-4:] == ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    last = events[-1].response
    assert last.output_text == whole.output_text and last.usage.total_tokens == whole.usage.total_tokens and last.id == events[0].response.id
    with client.responses.stream(model="demo", input=STORY, max_output_tokens=8, extra_body={"seed": 5}) as stream:
        for event in stream:
            pass
    assert event.response.output_text == whole.output_text


def test_log_probabilities_come_where_they_are_included(client):
    more = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    content = respond(client, **more).output[-1].content[0]
    assert b"".join(bytes(token.bytes) for token in content.logprobs).decode() == content.text
    assert all(len(token.top_logprobs) == 2 for token in content.logprobs)
    streamed = [token for event in respond(client, stream=True, **more) if event.type == "response.output_text.delta" for token in event.logprobs]
    assert [token.logprob for token in streamed] == [token.logprob for token in content.logprobs]
    assert respond(client).output[-1].content[0].logprobs == []


def test_a_stored_response_is_there_until_it_is_deleted(client):
    first = respond(client)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    items = client.responses.input_items.list(first.id).data
    assert len(items) == 1 and items[0].content[0].text == STORY and items[0].id
    client.responses.delete(first.id)
    for gone in (first.id, respond(client, store=False).id, "resp_0", first.id + "/x"):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(gone)
        with pytest.raises(openai.BadRequestError) as error:
            respond(client, previous_response_id=gone)
        assert error.value.code == "previous_response_not_found" and error.value.param == "previous_response_id"


def test_a_response_goes_on_from_another_but_not_from_its_instructions(client):
    first = respond(client, instructions="Be short.")
    next_one = respond(client, input="And a bear?", previous_response_id=first.id)
    sent = respond(client, input=[{"role": "user", "content": STORY}, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "And a bear?"}])
    assert next_one.output_text == sent.output_text and next_one.usage.input_tokens == sent.usage.input_tokens
    assert next_one.previous_response_id == first.id


def test_a_response_in_the_background_is_asked_for_later(client):
    whole = respond(client)
    queued = respond(client, background=True)
    assert queued.status in ("queued", "in_progress") and queued.background
    for _ in range(200):
        later = client.responses.retrieve(queued.id)
        if later.status not in ("queued", "in_progress"):
            break
        time.sleep(0.05)
    assert later.output_text == whole.output_text and later.status == whole.status
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(queued.id)  # it has ended
    long = respond(client, background=True, max_output_tokens=200)
    try:
        assert client.responses.cancel(long.id).status == "cancelled" and client.responses.retrieve(long.id).status == "cancelled"
    except openai.BadRequestError:
        assert client.responses.retrieve(long.id).status in ("completed", "incomplete")  # it was faster


def test_input_tokens_are_counted_as_they_are_used(client):
    assert client.responses.input_tokens.count(model="demo", input=STORY).input_tokens == respond(client).usage.input_tokens


@pytest.mark.parametrize("param, fields", [
    ("input", {"input": []}), ("input[0].type", {"input": [{"type": "computer_call"}]}), ("input[0].role", {"input": [{"role": "x", "content": "a"}]}),
    ("input[0].content[0].type", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]}),
    ("input[0].encrypted_content", {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "of another server"}]}),
    ("tools[0].type", {"tools": [{"type": "web_search"}]}), ("tools[0].type", {"tools": [{"type": "file_search", "vector_store_ids": []}]}),
    ("tools[0].type", {"tools": [{"type": "code_interpreter", "container": "a"}]}), ("tools[0].type", {"tools": [{"type": "computer_use_preview"}]}),
    ("tools[0].type", {"tools": [{"type": "mcp", "server_label": "a"}]}), ("conversation", {"conversation": "conv_1"}), ("truncation", {"truncation": "auto"}),
    ("background", {"background": True, "store": False}), ("background", {"background": True, "stream": True}), ("include[0]", {"include": ["x"]}),
    ("max_output_tokens", {"max_output_tokens": 0}), ("text.format.type", {"text": {"format": {"type": "x"}}}),
])
def test_what_is_not_served_is_refused_by_name(server, param, fields):
    status, answer, _ = server.ask("/v1/responses", {"input": "a"} | fields)
    assert status == 400 and answer["error"]["param"] == param, answer
