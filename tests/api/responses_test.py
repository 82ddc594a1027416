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
    assert first.completed_at is None and first.status == "incomplete"  # it was cut


def test_a_response_may_go_on_from_another_without_more_input(client, server):
    first = respond(client)
    following = client.responses.create(model="demo", previous_response_id=first.id, max_output_tokens=4, extra_body={"seed": 3})
    turns = [{"role": "user", "content": STORY}, {"role": "assistant", "content": first.output_text}]
    sent = client.responses.create(model="demo", input=turns, max_output_tokens=4, extra_body={"seed": 3})
    assert following.output_text == sent.output_text and following.usage.input_tokens == sent.usage.input_tokens
    assert client.responses.input_items.list(following.id).data == []
    status, refused, _ = server.ask("/v1/responses", {"max_output_tokens": 4})
    assert status == 400 and refused["error"]["param"] == "input"


def test_a_completed_response_tells_when_it_was(client):
    done = client.responses.create(model="demo", input="a", text={"format": {"type": "json_schema", "name": "x", "schema": {"const": 1}}})
    assert done.status == "completed" and done.completed_at >= done.created_at
    assert client.responses.retrieve(done.id).completed_at == done.completed_at


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
    assert client.responses.cancel(queued.id) == later, "it has ended: it is told as it is"
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(whole.id)  # it was not made in the background
    long = respond(client, background=True, max_output_tokens=200)
    left = client.responses.cancel(long.id)
    assert left.status in ("cancelled", "completed", "incomplete") and client.responses.retrieve(long.id) == left == client.responses.cancel(long.id)


def test_a_background_stream_is_told_again_from_any_event_on(client):
    stream = respond(client, background=True, stream=True)
    first = next(stream)
    stream.close()  # the response goes on
    events = list(client.responses.retrieve(first.response.id, stream=True))
    assert events[0] == first and first.response.status == "queued"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert events[-1].response == client.responses.retrieve(first.response.id) and events[-1].type == "response.incomplete"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == respond(client).output_text
    for seen in (0, 4, len(events) - 1, 10**6):
        assert list(client.responses.retrieve(first.response.id, stream=True, starting_after=seen)) == events[seen + 1:]
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.retrieve(respond(client).id, stream=True)
    assert error.value.param == "stream"
    running = respond(client, background=True, stream=True, max_output_tokens=200)
    client.responses.cancel(next(running).response.id)
    assert all(event.sequence_number for event in running), "the stream ends"


def test_input_items_come_in_pages(client):
    texts = [f"part {number}" for number in range(7)]
    id = respond(client, input=[{"role": "user", "content": text} for text in texts]).id
    for order in ("asc", "desc"):
        pages = client.responses.input_items.list(id, limit=3, order=order)
        assert len(pages.data) == 3 and pages.has_more
        assert [item.content[0].text for item in pages] == (texts if order == "asc" else texts[::-1])  # asks for the others
    for wrong in ({"limit": 0}, {"limit": 101}, {"after": "msg_x"}, {"order": "up"}):
        with pytest.raises(openai.BadRequestError) as error:
            client.responses.input_items.list(id, **wrong)
        assert error.value.param == next(iter(wrong))


def test_an_item_may_be_referred_to(client):
    first = respond(client)
    turns = lambda item: [{"role": "user", "content": STORY}, item, {"role": "user", "content": "And a bear?"}]
    sent = respond(client, input=turns({"role": "assistant", "content": first.output_text}))
    for reference in ({"type": "item_reference", "id": first.output[-1].id}, {"id": first.output[-1].id}):
        referred = respond(client, input=turns(reference))
        assert referred.output_text == sent.output_text and referred.usage.input_tokens == sent.usage.input_tokens
    told = client.responses.input_items.list(referred.id, order="asc").data
    assert told[1].id == first.output[-1].id and told[1].content[0].text == first.output_text
    for unknown in ("msg_1", "msg_0_0", first.output[-1].id + "9", first.id):
        with pytest.raises(openai.BadRequestError) as error:
            respond(client, input=turns({"type": "item_reference", "id": unknown}))
        assert error.value.param == "input[1].id"


def test_the_oldest_turns_fall_away_where_truncation_is_auto(client):
    turns = [{"role": "user" if number % 2 == 0 else "assistant", "content": f"{number} " + "word " * 20} for number in range(21)]
    with pytest.raises(openai.BadRequestError) as error:
        respond(client, input=turns)
    assert error.value.code == "context_length_exceeded"
    cut = respond(client, input=turns, truncation="auto", instructions="Be short.")
    count = lambda first: client.responses.input_tokens.count(model="demo", input=turns[first:], instructions="Be short.").input_tokens
    assert cut.truncation == "auto" and cut.usage.input_tokens == max(tokens for tokens in map(count, range(10, 21, 2)) if tokens + 8 <= 256)
    short = respond(client, truncation="auto")
    assert short.output_text == respond(client).output_text and short.truncation == "auto"
    with pytest.raises(openai.BadRequestError):
        respond(client, input="word " * 300, truncation="auto")  # nothing may go


@pytest.mark.parametrize("path", ["/v1/responses/compact", "/v1/conversations", "/v1/conversations/conv_1/items", "/v1/messages/batches"])
def test_paths_that_are_not_served_are_named(server, path):
    status, answer, _ = server.ask(path, {"model": "demo"})
    assert status == 404 and path.startswith(answer["error"]["message"].split(" is not served")[0])


def test_input_tokens_are_counted_as_they_are_used(client):
    assert client.responses.input_tokens.count(model="demo", input=STORY).input_tokens == respond(client).usage.input_tokens


@pytest.mark.parametrize("param, fields", [
    ("input", {"input": []}), ("input[0].type", {"input": [{"type": "computer_call"}]}), ("input[0].role", {"input": [{"role": "x", "content": "a"}]}),
    ("input[0].content[0].type", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]}),
    ("input[0].encrypted_content", {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "of another server"}]}),
    ("tools[0].type", {"tools": [{"type": "web_search"}]}), ("tools[0].type", {"tools": [{"type": "file_search", "vector_store_ids": []}]}),
    ("tools[0].type", {"tools": [{"type": "code_interpreter", "container": "a"}]}), ("tools[0].type", {"tools": [{"type": "computer_use_preview"}]}),
    ("tools[0].type", {"tools": [{"type": "mcp", "server_label": "a"}]}), ("conversation", {"conversation": "conv_1"}), ("truncation", {"truncation": "middle"}), ("input[0].id", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    ("background", {"background": True, "store": False}), ("include[0]", {"include": ["x"]}),
    ("max_output_tokens", {"max_output_tokens": 0}), ("text.format.type", {"text": {"format": {"type": "x"}}}),
])
def test_what_is_not_served_is_refused_by_name(server, param, fields):
    status, answer, _ = server.ask("/v1/responses", {"input": "a"} | fields)
    assert status == 400 and answer["error"]["param"] == param, answer
