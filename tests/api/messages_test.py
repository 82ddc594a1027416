"""/v1/messages as the official anthropic SDK speaks it."""
import anthropic
import pytest

from serving import Server

STORY = [{"role": "user", "content": "Tell me a story about a frog"}]


@pytest.fixture(scope="module")
def claude(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def message(claude, **more):
    return claude.messages.create(model="demo", **{"max_tokens": 8, "messages": STORY, "extra_body": {"seed": 5}} | more)


def test_a_message_parses_and_is_what_a_chat_would_answer(claude, client):
    answer = message(claude, system=[{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}])
    chat = client.chat.completions.create(model="demo", max_tokens=8, seed=5, messages=[{"role": "system", "content": "Be short."}, *STORY])
    assert [block.text for block in answer.content if block.type == "text"] == [chat.choices[0].message.content]
    assert answer.stop_reason == "max_tokens" and answer.role == "assistant" and answer.id.startswith("msg_")
    usage = answer.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == chat.usage.prompt_tokens and usage.output_tokens == 8
    blocks = message(claude, system="Be short.", messages=[{"role": "user", "content": [{"type": "text", "text": STORY[0]["content"]}]}])
    assert blocks.content == answer.content


def test_a_stream_joins_to_the_whole_message(claude):
    whole = message(claude)
    with claude.messages.stream(model="demo", max_tokens=8, messages=STORY, extra_body={"seed": 5}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text and final.content[0].text == text and final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 8
    names = [event.type for event in message(claude, stream=True)]  # the SDK keeps pings to itself
    assert names[:2] == ["message_start", "content_block_start"] and names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}


def test_a_stop_sequence_is_named(claude):
    text = message(claude, max_tokens=30).content[0].text
    word = text.split()[2]
    answer = message(claude, max_tokens=30, stop_sequences=["@@", word])
    assert answer.stop_reason == "stop_sequence" and answer.stop_sequence == word and word not in answer.content[0].text
    events = list(message(claude, max_tokens=30, stop_sequences=[word], stream=True))
    assert events[-2].delta.stop_reason == "stop_sequence" and events[-2].delta.stop_sequence == word


def test_a_last_message_of_the_assistant_is_gone_on_from(claude, server):
    begun = [*STORY, {"role": "assistant", "content": [{"type": "text", "text": "Once upon a time"}]}]
    answer = message(claude, messages=begun)
    chat = server.ask("/v1/chat/completions", {"messages": [*STORY, {"role": "assistant", "content": "Once upon a time"}], "max_tokens": 8, "seed": 5,
                                               "continue_final_message": True, "add_generation_prompt": False})[1]
    assert answer.content[0].text == chat["choices"][0]["message"]["content"] != message(claude).content[0].text
    count = claude.messages.count_tokens(model="demo", messages=begun)
    assert count.input_tokens == chat["usage"]["prompt_tokens"]
    assert message(claude, messages=[*STORY, {"role": "assistant", "content": ""}]).content == message(claude).content
    for refused in ({"messages": [*STORY, {"role": "assistant", "content": "Once "}]},
                    {"messages": [{"role": "assistant", "content": ""}]},
                    {"messages": begun, "extra_body": {"output_config": {"format": {"type": "json_schema", "schema": {}}}}}):
        with pytest.raises(anthropic.BadRequestError):
            message(claude, **refused)


def test_tokens_are_counted_as_they_are_used(claude):
    usage = message(claude, system="Be short.").usage
    count = claude.messages.count_tokens(model="demo", messages=STORY, system="Be short.")
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_a_format_goes_by_both_its_names(claude, server):
    format = {"type": "json_schema", "schema": {"enum": ["frog", "bear"]}}
    ask = lambda **fields: server.ask("/v1/messages", {"max_tokens": 20, "messages": STORY, "seed": 5} | fields)
    _, new, _ = ask(output_config={"format": format})
    status, old, headers = ask(output_format=format)
    assert status == 200 and old["content"] == new["content"] and old["content"][0]["text"] in ('"frog"', '"bear"') and "X-Nibble-Ignored" not in headers
    assert ask(output_format=None)[0] == 200
    for wrong in ({"type": "json_object"}, {"type": "json_schema"}, {}):
        status, answer, _ = ask(output_format=wrong)
        assert status == 400 and answer["error"]["message"].startswith("output_format."), answer


def test_a_system_message_of_nothing_is_none(server):
    count = lambda **fields: server.ask("/v1/messages/count_tokens", {"messages": STORY} | fields)[1]["input_tokens"]
    assert count() == count(system="") == count(system=[]) == count(system=[{"type": "text", "text": ""}]) < count(system="a")


def test_results_of_tools_and_thinking_stand_in_the_conversation(claude):
    turns = [*STORY, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "I look."},
                                                      {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "pond"}}]},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "a frog"}]}, {"type": "text", "text": "Go on"}]}]
    count = lambda messages: claude.messages.count_tokens(model="demo", messages=messages).input_tokens
    assert count(turns) > count(turns[:2]) > count(turns[:1])


def test_thinking_that_another_server_alone_can_read_is_left_out(claude):
    turns = lambda *blocks: [*STORY, {"role": "assistant", "content": [*blocks, {"type": "text", "text": "A frog."}]}, {"role": "user", "content": "Go on"}]
    count = lambda messages: claude.messages.count_tokens(model="demo", messages=messages).input_tokens
    assert count(turns({"type": "redacted_thinking", "data": "EmwKAh"})) == count(turns())


def test_what_is_to_leave_the_conversation_is_the_templates_choice(claude):
    ask = lambda kind: claude.beta.messages.create(model="demo", max_tokens=4, messages=STORY, betas=["context-management-2025-06-27"],
                                                   context_management={"edits": [{"type": kind}]})
    assert ask("clear_thinking_20251015").stop_reason == "max_tokens"
    with pytest.raises(anthropic.BadRequestError) as error:
        ask("clear_tool_uses_20250919")
    assert "context_management.edits[0].type" in error.value.body["error"]["message"]


def test_ids_and_models_are_told_as_anthropic_tells_them(claude, server):
    assert message(claude)._request_id.startswith("req-")
    assert message(claude, extra_headers={"X-Request-Id": "mine"})._request_id == "mine"
    with pytest.raises(anthropic.NotFoundError) as error:
        claude.models.retrieve("claude")
    assert error.value.body["type"] == "error"
    [model] = claude.models.list()
    assert model.id == model.display_name == "demo" and model.created_at.year > 2000 and claude.models.retrieve("demo") == model
    assert "request-id" not in server.ask("/v1/completions", {"prompt": "a", "max_tokens": 1})[2]


@pytest.mark.parametrize("kind, fields, text", [
    (anthropic.BadRequestError, {"messages": []}, "messages"), (anthropic.BadRequestError, {"max_tokens": 0}, "max_tokens"),
    (anthropic.BadRequestError, {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
    (anthropic.BadRequestError, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    (anthropic.BadRequestError, {"extra_body": {"mcp_servers": [{}]}}, "mcp_servers"), (anthropic.NotFoundError, {"model": "claude"}, "demo"),
    (anthropic.BadRequestError, {"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
])
def test_errors_are_the_sdks_exceptions(claude, kind, fields, text):
    with pytest.raises(kind) as error:
        claude.messages.create(**{"model": "demo", "max_tokens": 4, "messages": STORY} | fields)
    assert text in error.value.body["error"]["message"] and error.value.body["type"] == "error"


def test_a_thread_is_refused_with_the_code_that_its_client_knows(server):
    status, answer, _ = server.ask("/v1/messages?beta=true", {"max_tokens": 4, "messages": STORY, "thread": {"type": "create"}}, **{"anthropic-beta": "unknown-1"})
    assert status == 400 and answer["error"]["details"]["error_code"] == "thread_unsupported_request"


def test_a_key_comes_in_either_header():
    server = Server("--api-key", "secret")
    ask = lambda **key: anthropic.Anthropic(base_url=server.url, max_retries=0, **key).messages.count_tokens(model="demo", messages=STORY)
    assert ask(api_key="secret").input_tokens == ask(auth_token="secret", api_key=None).input_tokens
    with pytest.raises(anthropic.AuthenticationError) as error:
        ask(api_key="wrong")
    assert error.value.body["error"]["type"] == "authentication_error"
    assert server.stop() == 0
