"""Fields of vLLM's that say which tokens an answer may have, where it goes on, and what of the prompt is told."""
import json

import pytest

from serving import Server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Tell me a story"}]


def ask(server, path, **body):
    status, answer, _ = server.ask(path, {"max_tokens": 24, "temperature": 1, "seed": 5} | body)
    assert status == 200, answer
    return answer


def refusal(server, path, **body):
    status, answer, _ = server.ask(path, {"max_tokens": 4} | body)
    assert status == 400, answer
    return answer["error"]


def ids_of(server, text):
    return server.ask("/tokenize", {"prompt": text})[1]["tokens"]


def runs_of(sequence, tokens):
    return any(tokens[i:i + len(sequence)] == sequence for i in range(len(tokens)))


def test_an_answer_has_allowed_tokens_alone(server):
    allowed = ids_of(server, "the little dog ran to a tree")
    for path, prompt in ((TEXT, {"prompt": "Once"}), (CHAT, {"messages": MESSAGES})):
        for seed in range(3):
            choice = ask(server, path, seed=seed, allowed_token_ids=allowed, return_token_ids=True, **prompt)["choices"][0]
            assert set(choice["token_ids"]) <= set(allowed) and len(choice["token_ids"]) == 24  # the end is not among them
    assert ask(server, TEXT, prompt="Once", allowed_token_ids=[]) ["choices"] == ask(server, TEXT, prompt="Once")["choices"]


def test_bad_words_do_not_come_however_they_are_split(server):
    free = ask(server, TEXT, prompt="Once upon a time", temperature=0, max_tokens=60, ignore_eos=True)["choices"][0]["text"]
    words = sorted({word for word in free.split() if word.isalpha()})
    assert len(words) > 5
    answer = ask(server, TEXT, prompt="Once upon a time", temperature=0, max_tokens=60, ignore_eos=True, bad_words=words, return_token_ids=True)["choices"][0]
    for word in words:
        for spelled in (word, " " + word):
            assert not runs_of(ids_of(server, spelled), answer["token_ids"]), word
    assert answer["text"] != free


def test_neighbours_of_limited_answers_keep_theirs(server):
    """A request's choices run together: the free answer is the same alone and beside limited ones."""
    import concurrent.futures
    alone = ask(server, TEXT, prompt="Once", logprobs=2)["choices"]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        limited = [pool.submit(ask, server, TEXT, prompt="Once", bad_words=["a", "the", "dog"], n=2) for _ in range(3)]
        beside = [pool.submit(ask, server, TEXT, prompt="Once", logprobs=2) for _ in range(3)]
        assert all(one.result()["choices"] == alone for one in beside)
        assert len({json.dumps(one.result()["choices"]) for one in limited}) == 1


@pytest.mark.parametrize("field, wrong", [("bad_words", ["a", [""], ["  "], [5], ["x" * 257], ["a"] * 1025]), ("allowed_token_ids", ["a", [-1], [1 << 20], ["5"], [1.5]])])
def test_limits_that_are_none_name_themselves(server, field, wrong):
    for value in wrong:
        assert refusal(server, TEXT, prompt="a", **{field: value})["param"].startswith(field)
    assert "guided_regex" in refusal(server, TEXT, prompt="a", guided_regex="a+", **{field: ["a"] if field == "bad_words" else [5]})["message"]


def test_control_tokens_are_shown_where_they_are_asked_for(server):
    control = next(i for i in range(1 << 20) if server.ask("/detokenize", {"tokens": [i]})[1]["prompt"].startswith("<|start|>"))
    for skip, shown in ((True, ""), (False, "<|start|>" * 3)):
        choice = ask(server, TEXT, prompt="a", max_tokens=3, allowed_token_ids=[control], skip_special_tokens=skip)["choices"][0]
        assert choice["text"] == shown
    # What parts messages still does in a chat.
    plain = ask(server, CHAT, messages=MESSAGES)
    shown = ask(server, CHAT, messages=MESSAGES, skip_special_tokens=False)
    assert plain["choices"] == shown["choices"]


def test_a_chat_goes_on_with_its_last_message(server):
    prefix = "Once upon a time, there was a little "
    messages = [*MESSAGES, {"role": "assistant", "content": prefix}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    tokens = server.ask("/tokenize", body)[1]["tokens"]
    assert server.ask("/detokenize", {"tokens": tokens})[1]["prompt"].endswith(prefix)
    said = ask(server, CHAT, temperature=0, **body)["choices"][0]["message"]["content"]
    assert said == ask(server, TEXT, prompt=tokens, temperature=0)["choices"][0]["text"] and said
    assert "add_generation_prompt: false" in refusal(server, CHAT, **body | {"add_generation_prompt": True})["message"]
    assert refusal(server, CHAT, **body | {"messages": [*MESSAGES, {"role": "assistant", "content": ""}]})["param"] == "messages"


def check_told(told, prompt, most):
    assert told[0] is None and len(told) == len(prompt)
    for token, position in zip(prompt[1:], told[1:]):
        assert list(position)[0] == str(token) and most <= len(position) <= most + 1
        ranked = sorted((entry["rank"], entry["logprob"]) for entry in position.values())
        assert [rank for rank, _ in ranked][:most] == list(range(1, most + 1))
        assert [p for _, p in ranked] == sorted((p for _, p in ranked), reverse=True)
        assert (position[str(token)]["rank"] > most) == (len(position) > most)


def test_log_probabilities_of_a_prompt_are_those_of_an_echo(server):
    prompt = ids_of(server, "Once upon a time, there was a dog")
    echoed = ask(server, TEXT, prompt=prompt, echo=True, logprobs=0, max_tokens=1)["choices"][0]["logprobs"]
    for most in (0, 1, 3, 20):
        for n in (1, 2):
            choices = ask(server, TEXT, prompt=prompt, prompt_logprobs=most, n=n, max_tokens=1)["choices"]
            for choice in choices:
                check_told(choice["prompt_logprobs"], prompt, most)
                assert choice["logprobs"] is None and len(choices) == n
                assert [p[str(t)]["logprob"] for t, p in zip(prompt[1:], choice["prompt_logprobs"][1:])] == echoed["token_logprobs"][1:len(prompt)]
    both = ask(server, TEXT, prompt=prompt, echo=True, logprobs=2, prompt_logprobs=5, n=2, max_tokens=1)["choices"]
    less = ask(server, TEXT, prompt=prompt, echo=True, logprobs=2, n=2, max_tokens=1)["choices"]
    assert [c["logprobs"] for c in both] == [c["logprobs"] for c in less]
    check_told(both[1]["prompt_logprobs"], prompt, 5)


def test_a_rank_beyond_the_likeliest_is_what_a_longer_list_says(server):
    prompt = ids_of(server, "Once upon a time, there was a dog who saw a tree")
    few, many = (ask(server, TEXT, prompt=prompt, prompt_logprobs=most, max_tokens=1)["choices"][0]["prompt_logprobs"] for most in (0, 20))
    ranks = [(position[str(token)]["rank"], longer[str(token)]["rank"]) for token, position, longer in zip(prompt[1:], few[1:], many[1:])]
    assert all(rank == longer for rank, longer in ranks) and any(rank > 1 for rank, _ in ranks), ranks


def test_constrained_log_probabilities_are_of_what_the_format_allows(server):
    import math
    body = dict(prompt="Once", guided_regex="[ab]{6}", logprobs=20, temperature=1)
    raw, bound = (ask(server, TEXT, constrained_logprobs=bound, **body)["choices"][0] for bound in (False, True))
    assert raw["text"] == bound["text"] and ask(server, TEXT, **body)["choices"][0] == raw
    for token, p, top in zip(*(bound["logprobs"][key] for key in ("tokens", "token_logprobs", "top_logprobs"))):
        assert top[token] == p
        if token.startswith("<|"):  # only what ends an answer may come
            assert all(other.startswith("<|") for other in top)
        else:
            assert set("".join(top)) <= set("ab")
        assert abs(sum(math.exp(value) for value in top.values()) - 1) < 1e-4  # every token that may come is among the 20
    assert sum(math.exp(value) for value in raw["logprobs"]["top_logprobs"][0].values()) > 0.5
    assert raw["logprobs"]["token_logprobs"][0] < bound["logprobs"]["token_logprobs"][0]
    free = ask(server, TEXT, prompt="Once", logprobs=3, constrained_logprobs=True)["choices"]
    assert free == ask(server, TEXT, prompt="Once", logprobs=3)["choices"]
    chat = ask(server, CHAT, messages=MESSAGES, guided_choice=["yes", "no"], logprobs=True, top_logprobs=4, constrained_logprobs=True)
    for entry in chat["choices"][0]["logprobs"]["content"]:
        assert all("yes".startswith(other["token"]) or other["token"] in "yesno" for other in entry["top_logprobs"]), entry
    assert refusal(server, TEXT, prompt="Once", constrained_logprobs=True)["param"] == "constrained_logprobs"


def test_log_probabilities_of_a_chats_prompt(server):
    prompt = server.ask("/tokenize", {"messages": MESSAGES})[1]["tokens"]
    answer = ask(server, CHAT, messages=MESSAGES, prompt_logprobs=2)
    check_told(answer["prompt_logprobs"], prompt, 2)
    assert answer["choices"] == ask(server, CHAT, messages=MESSAGES)["choices"]
    decoded = "".join(p[str(t)]["decoded_token"] for t, p in zip(prompt[1:], answer["prompt_logprobs"][1:]))
    assert decoded.endswith(server.ask("/detokenize", {"tokens": prompt[1:]})[1]["prompt"][-20:])
    assert refusal(server, CHAT, messages=MESSAGES, prompt_logprobs=2, stream=True)["param"] == "prompt_logprobs"
    for wrong in (-1, 21, "1", True):
        assert refusal(server, CHAT, messages=MESSAGES, prompt_logprobs=wrong)["param"] == "prompt_logprobs"


def test_a_clients_template_is_refused_by_default(server):
    error = refusal(server, CHAT, messages=MESSAGES, chat_template="{{ 1 }}")
    assert error["param"] == "chat_template" and "--trust-request-chat-template" in error["message"]
    assert ask(server, CHAT, messages=MESSAGES, chat_template="") ["choices"]


@pytest.fixture(scope="module")
def trusting():
    server = Server("--max-model-len", 256, "--trust-request-chat-template")
    yield server
    assert server.process.poll() is None, "no template ended it"
    assert server.stop() == 0


def test_a_clients_template_makes_the_prompt_where_it_is_trusted(trusting):
    template = "{% for m in messages %}{{ m.content | upper }}!{% endfor %}{{ x }}"
    body = {"messages": MESSAGES, "chat_template": template, "chat_template_kwargs": {"x": "?"}}
    tokens = trusting.ask("/tokenize", body)[1]["tokens"]
    assert tokens == ids_of(trusting, "TELL ME A STORY!?")
    content = ask(trusting, CHAT, temperature=0, **body)["choices"][0]["message"]["content"]
    assert content == ask(trusting, TEXT, prompt=tokens, temperature=0)["choices"][0]["text"].lstrip("\n")
    assert trusting.ask("/tokenize", {"messages": MESSAGES})[1]["tokens"] != tokens


BOMBS = ["{% for i in range(1000000000) %}a{% endfor %}", "{{ 'a' * 1000000000 }}", "{% set x = namespace(t='a') %}{% for i in range(60) %}{% set x.t = x.t + x.t %}{% endfor %}",
         "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
         "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% if x %}" * 5000, "{{ x", "{% nothing %}", "{{ raise_exception('no') }}", "a" * 200_000,
         "{% for i in range(3000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}", "{{ ''.__class__ }}"]


def test_templates_that_take_too_much_are_refused_soon(trusting):
    import time
    for bomb in BOMBS:
        begin = time.monotonic()
        status, answer, _ = trusting.ask(CHAT, {"messages": MESSAGES, "max_tokens": 1, "chat_template": bomb})
        assert time.monotonic() - begin < 60, bomb[:60]  # of a machine that others share; it takes less than a second of one thread
        if status != 200:  # an attribute that is not there is empty text
            assert status == 400 and answer["error"]["param"] in ("chat_template", "messages"), (bomb[:60], answer)
    with open(f"/proc/{trusting.process.pid}/status") as about:
        peak = int(next(line for line in about if line.startswith("VmHWM")).split()[1])
    assert peak < 4 << 20  # KiB


def test_what_is_no_embedding_says_so(server):
    for path in ("/v1/embeddings", "/v1/score", "/v1/rerank", "/rerank", "/v2/rerank"):
        status, answer, _ = server.ask(path, {"model": "demo", "input": "a"})
        assert status == 404 and answer["error"]["code"] == "not_served" and path in answer["error"]["message"]
