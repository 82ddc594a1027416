"""Where text becomes tokens and tokens become text: special tokens, what of an answer is content, and what is told of it."""
import json

import pytest

from nibble_program import ROOT

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Tell me a story about a frog"}]
SPELLED = "<|start|>user<|message|>Tell me a story about a frog<|end|><|start|>assistant"


def tokens_of(server, **body):
    status, answer, _ = server.ask("/tokenize", body)
    assert status == 200, answer
    return answer["tokens"]


def chat(server, **more):
    """The answer's choice, whole and joined from a stream, which must be the same."""
    body = {"messages": MESSAGES, "seed": 5} | more
    status, answer, _ = server.ask(CHAT, body)
    assert status == 200, answer
    [choice] = answer["choices"]
    chunks, done = server.stream(CHAT, body)
    assert done
    parts = [part for chunk in chunks for part in chunk["choices"]]
    joined = lambda name: "".join(part["delta"].get(name) or "" for part in parts)
    assert joined("content") == choice["message"]["content"]
    assert joined("reasoning_content") == choice["message"].get("reasoning_content", "")
    if choice["logprobs"]:
        assert [token for part in parts for token in part["logprobs"]["content"]] == choice["logprobs"]["content"]
    return choice


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5])
def test_a_chat_that_ends_early_shows_no_control_token(server, most):
    for more in ({}, {"logprobs": True, "top_logprobs": 2}, {"add_generation_prompt": False}):
        choice = chat(server, max_tokens=most, **more)
        assert "<|" not in choice["message"]["content"] + choice["message"].get("reasoning_content", "")
        assert choice["finish_reason"] == "length"


def test_without_a_generation_prompt_the_answer_still_has_no_header(server):
    """The model writes the header of its message itself."""
    for seed in range(4):
        content = chat(server, max_tokens=40, seed=seed, temperature=0.3, add_generation_prompt=False)["message"]["content"]
        assert "<|" not in content and not content.startswith(("assistant", "final"))


@pytest.mark.parametrize("more", [{}, {"stop": ["e"]}, {"stop": [" a", "the frog"]}, {"temperature": 2, "seed": 3}, {"temperature": 2, "seed": 4, "stop": ["i"]},
                                  {"min_tokens": 12, "stop": "e"}, {"ignore_eos": True, "max_tokens": 120}])
def test_log_probabilities_are_told_of_the_content_and_join_to_it(server, more):
    choice = chat(server, logprobs=True, top_logprobs=2, return_token_ids=True, **{"max_tokens": 40} | more)
    content, told = choice["message"]["content"], choice["logprobs"]["content"]
    assert b"".join(bytes(token["bytes"]) for token in told) == content.encode()
    assert len(told) < len(choice["token_ids"]), "the header's tokens are not among them"
    assert not any(token["token"].startswith("<|") for token in told)
    plain = chat(server, **{"max_tokens": 40} | more)
    assert plain["message"]["content"] == content


def test_characters_over_several_tokens_join_too(server):
    """Tokens that are bytes of characters, forced in any order: characters whole, cut and broken."""
    pieces = server.ask("/tokenize", {"prompt": "é漢🦊", "return_token_strs": True})[1]
    for seed in range(4):
        bias = {str(token): 100 for token in pieces["tokens"]}
        choice = chat(server, max_tokens=30, min_tokens=30, logprobs=True, temperature=2, seed=seed, logit_bias=bias)
        joined = b"".join(bytes(token["bytes"]) for token in choice["logprobs"]["content"])
        assert joined == choice["message"]["content"].encode() and joined


def test_special_tokens_in_a_prompt_count_when_the_client_says_so(server):
    inert = tokens_of(server, prompt=SPELLED)
    live = tokens_of(server, prompt=SPELLED, parse_special=True)
    assert live == tokens_of(server, messages=MESSAGES) and len(inert) > len(live)
    for more, ids in (({}, inert), ({"parse_special": False}, inert), ({"parse_special": True}, live), ({"add_special_tokens": False}, inert)):
        answer = server.ask(TEXT, {"prompt": SPELLED, "max_tokens": 1, "return_token_ids": True} | more)[1]
        assert answer["choices"][0]["prompt_token_ids"] == ids, more
    for path, body in ((TEXT, {"prompt": "a"}), ("/tokenize", {"prompt": "a"})):
        for field in ("parse_special", "add_special_tokens"):
            status, answer, _ = server.ask(path, body | {field: 1})
            assert status == 400 and answer["error"]["param"] == field
    for field in ("parse_special", "add_special_tokens"):
        assert server.ask(CHAT, {"messages": MESSAGES, "max_tokens": 1, field: False})[0] == 200
        status, answer, _ = server.ask(CHAT, {"messages": MESSAGES, field: True})
        assert status == 400 and answer["error"]["param"] == field


def test_what_the_tokenizer_is_is_told_as_vllm_tells_it(server):
    status, answer = server.get("/tokenizer_info")
    told, config = json.loads(answer), json.loads((ROOT / "models/demo/tokenizer_config.json").read_text())
    assert status == 200 and told == config | {"chat_template": (ROOT / "models/demo/chat_template.jinja").read_text()}
    assert told["tokenizer_class"] and told["eos_token"] == "<|return|>"


def test_a_day_is_checked_wherever_it_is_given(server):
    for day in ("2026-01-31", "2024-02-29"):
        for path, body in ((CHAT, {"messages": MESSAGES, "max_tokens": 1}), ("/tokenize", {"messages": MESSAGES})):
            assert server.ask(path, body | {"chat_template_kwargs": {"date": day}})[0] == 200
            assert server.ask(path, body | {"chat_template_kwargs": {"date": None}})[0] == 200
    for day in ("2026-02-29", "31.1.2026", "", 20260131, [], "2026-01-31T00:00"):
        status, answer, _ = server.ask(CHAT, {"messages": MESSAGES, "max_tokens": 1, "chat_template_kwargs": {"date": day}})
        assert status == 400 and answer["error"]["param"] == "chat_template_kwargs.date", day
        assert "YYYY-MM-DD" in answer["error"]["message"]


def test_what_clients_of_other_servers_send_is_refused_or_changes_nothing(server):
    plain = chat(server, max_tokens=8)
    harmless = {"prompt_cache_key": "a", "prompt_cache_retention": "24h", "safety_identifier": "b", "store": False, "repeat_penalty": 1.0, "typical_p": 1.0,
                "dry_multiplier": 0, "cache_prompt": True, "include_reasoning": True, "lora": [], "priority": 0, "top_n_sigma": -1}
    status, answer, headers = server.ask(CHAT, {"messages": MESSAGES, "seed": 5, "max_tokens": 8} | harmless)
    assert status == 200 and headers["X-Nibble-Ignored"] is None
    assert answer["choices"][0]["message"] == plain["message"]
    for field, value in {"repeat_penalty": 1.1, "typical_p": 0.9, "dry_multiplier": 0.8, "lora": [{"id": 0}], "enable_thinking": False, "n_predict": 5,
                         "user": 5, "model": "", "store": "no", "echo": True}.items():
        status, answer, _ = server.ask(CHAT, {"messages": MESSAGES, "max_tokens": 1, field: value})
        assert status == 400 and answer["error"]["param"] == field, field


def test_an_answer_without_a_limit_has_one_all_the_same(server):
    usage = server.ask(TEXT, {"prompt": "Once upon a time", "ignore_eos": True, "seed": 1})[1]["usage"]
    assert usage["completion_tokens"] == 16
    for path, body in ((CHAT, {"messages": MESSAGES}), (TEXT, {"prompt": [5] * 250})):
        found = [server.ask(path, body | {"seed": 1, name: value}) for name in ("max_tokens", "max_completion_tokens") for value in (10**18, 1e18)]
        assert [status for status, *_ in found] == [200] * 4
        assert len({json.dumps(answer["choices"]) for _, answer, _ in found}) == 1
        for value in (-1, 1.5, "5", 1e19, -1e18, True):
            refused = [server.ask(path, body | {name: value}) for name in ("max_tokens", "max_completion_tokens")]
            assert [(status, answer["error"]["param"]) for status, answer, _ in refused] == [(400, "max_tokens"), (400, "max_completion_tokens")]
