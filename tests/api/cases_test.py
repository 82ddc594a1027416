"""Cases of other servers' tests that no other file here asks; docs/internals/api_checklist.md has them all."""
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SYSTEM = {"role": "system", "content": "Tell short stories."}


def told(server, messages, **more):
    status, answer, _ = server.ask(CHAT, {"messages": messages, "max_tokens": 6, "temperature": 0} | more)
    assert status == 200, answer
    return answer


def test_a_conversation_of_several_turns_and_text_in_parts(server):
    first = told(server, [SYSTEM, {"role": "user", "content": "Tell me of a fox"}])["choices"][0]["message"]
    turns = [SYSTEM, {"role": "user", "content": "Tell me of a fox"}, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": "And now a bear"}]
    whole = told(server, turns, return_token_ids=True)
    parts = [dict(turn) for turn in turns]
    parts[-1]["content"] = [{"type": "text", "text": "And now"}, {"type": "text", "text": " a bear"}]
    assert told(server, parts, return_token_ids=True)["prompt_token_ids"] == whole["prompt_token_ids"]
    developer = [dict(turn) for turn in turns]
    developer[0]["role"] = "developer"
    assert told(server, developer)["choices"][0]["message"]["content"]


def test_usage_while_it_runs_counts_up(server):
    chunks, _ = server.stream(TEXT, {"prompt": "Once", "max_tokens": 6, "ignore_eos": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4, 5, 6, 6]
    for options in ({}, {"include_usage": False}, {"include_usage": False, "continuous_usage_stats": True}):
        chunks, _ = server.stream(TEXT, {"prompt": "Once", "max_tokens": 2, "stream_options": options})
        assert all("usage" not in chunk for chunk in chunks)
    assert server.ask(TEXT, {"prompt": "a", "stream_options": {"include_usage": None}})[0] == 400


def test_log_probabilities_of_none_some_and_all_sizes(server):
    def logprobs(**more):
        return server.ask(TEXT, {"prompt": [5, 6], "max_tokens": 3, "temperature": 1.5, "seed": 2} | more)[1]["choices"][0]["logprobs"]

    assert logprobs(logprobs=None) is None
    for count in (0, 1, 5, 20):
        told = logprobs(logprobs=count)
        assert all(count <= len(top) <= count + 1 and token in top for top, token in zip(told["top_logprobs"], told["tokens"]))
    chat = server.ask(CHAT, {"messages": [SYSTEM, {"role": "user", "content": "a"}], "max_tokens": 12, "logprobs": True, "top_logprobs": 0})[1]
    assert chat["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    assert server.ask(CHAT, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "logprobs": False, "top_logprobs": 0})[1]["choices"][0]["logprobs"] is None


def test_text_offsets_are_where_tokens_stand(server):
    for more in ({}, {"echo": True}, {"stop": ["e"]}, {"stop": ["time there was a princess and a dragon", "zz"], "max_tokens": 40}, {"stop": ["n x", "e x", "d x", "s x", " x"], "echo": True}):
        choice = server.ask(TEXT, {"prompt": "Once upon a time", "max_tokens": 12, "logprobs": 0, "seed": 4} | more)[1]["choices"][0]
        for offset, token in zip(choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]):
            shown = choice["text"][offset:offset + len(token)]
            assert token.startswith(shown)
        chunks, _ = server.stream(TEXT, {"prompt": "Once upon a time", "max_tokens": 12, "logprobs": 0, "seed": 4} | more)
        assert [offset for chunk in chunks for offset in chunk["choices"][0]["logprobs"]["text_offset"]] == choice["logprobs"]["text_offset"]


def test_a_list_of_one_kind_of_prompt_only(server):
    ids = server.ask("/tokenize", {"prompt": "Once upon"})[1]["tokens"]
    by_text, by_ids = ([c["text"] for c in server.ask(TEXT, {"prompt": [prompt] * 2, "max_tokens": 5, "seed": 1})[1]["choices"]] for prompt in ("Once upon", ids))
    assert by_text == by_ids and by_text[0] == by_text[1]
    for mixed in ([ids, "Once"], ["Once", 5], [5, "Once"]):
        assert server.ask(TEXT, {"prompt": mixed})[0] == 400


def test_messages_that_are_none_are_the_clients_fault(server):
    for messages in (None, "string", [123], [{}], [{"role": 123}], [{"role": "system", "content": 123}], [{"content": "hello"}], [SYSTEM, {}],
                     [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": ["a"]}], [{"role": "user", "content": {"text": "a"}}], {}):
        status, answer, _ = server.ask(CHAT, {"messages": messages})
        assert status == 400 and answer["error"]["param"].startswith("messages"), messages


def test_fields_that_constrain_an_answer_are_not_passed_over(server):
    for field, value in (("guided_whitespace_pattern", "a"), ("truncate_prompt_tokens", 4), ("use_beam_search", True), ("include_stop_str_in_output", True)):
        status, answer, _ = server.ask(TEXT, {"prompt": "a", field: value})
        assert status == 400 and answer["error"]["param"] == field


def test_tokens_with_their_texts(server):
    text = "This is a test with unicode 媽 and emoji 🤗"
    plain = server.ask("/tokenize", {"prompt": text})[1]
    told = server.ask("/tokenize", {"prompt": text, "return_token_strs": True, "add_special_tokens": True})[1]
    assert "token_strs" not in plain and told == plain | {"token_strs": told["token_strs"]}
    assert len(told["token_strs"]) == told["count"] and "".join(told["token_strs"]).startswith("This is a test with unicode ")
    for field, value in (("return_token_strs", 1), ("add_generation_prompt", 1), ("add_special_tokens", "a"), ("model", 5), ("prompt", 5), ("messages", [])):
        status, answer, _ = server.ask("/tokenize", {"prompt": "a"} | {field: value})
        assert status == 400 and answer["error"]["param"].startswith(field)
