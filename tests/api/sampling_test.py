"""Every way of sampling, alone and with the others: what it does, and that it does the same in company."""
import concurrent.futures
import itertools
import json
import math
import random

import pytest

from nibble_program import ROOT

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Tell me a story about a frog"}]


def complete(server, **more):
    status, answer, _ = server.ask(TEXT, {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0, "return_token_ids": True} | more)
    assert status == 200, answer
    return answer["choices"][0]


def test_what_a_request_leaves_open_is_the_models_own_choice(server):
    own = json.loads((ROOT / "models/demo/generation_config.json").read_text())["temperature"]

    def told(**more):
        return [server.ask(path, body | {"max_tokens": 40, "seed": 7} | more)[1]["choices"] for path, body in
                ((TEXT, {"prompt": "Once upon a time"}), (CHAT, {"messages": MESSAGES}))]

    assert told() == told(temperature=own) != told(temperature=1.9)
    assert server.ask("/v1/responses", {"input": "Hello", "max_output_tokens": 4})[1]["temperature"] == own


def test_a_bias_of_a_hundred_decides_and_of_minus_hundred_forbids(server):
    [token] = server.ask("/tokenize", {"prompt": " frog"})[1]["tokens"]
    assert complete(server, logit_bias={str(token): 100}, max_tokens=5)["token_ids"] == [token] * 5
    first = complete(server, max_tokens=1)["token_ids"][0]
    assert first not in complete(server, logit_bias={str(first): -100}, temperature=2, ignore_eos=True)["token_ids"]


def test_penalties_thin_out_what_was_said(server):
    def different(**more):
        return len(set(complete(server, ignore_eos=True, max_tokens=80, **more)["token_ids"]))

    plain = different()
    assert different(frequency_penalty=2) > plain and different(presence_penalty=2) > plain and different(repetition_penalty=1.8) > plain
    assert different(frequency_penalty=-2) < plain


def test_frequency_counts_each_time_and_presence_once(server):
    """A token whose bias puts it ahead by less than 2 * 20 and more than 2 comes until its penalties overtake the bias."""
    [token] = server.ask("/tokenize", {"prompt": " frog"})[1]["tokens"]
    bias = {str(token): 40}
    assert complete(server, logit_bias=bias, presence_penalty=2, max_tokens=30)["token_ids"] == [token] * 30
    often = complete(server, logit_bias=bias, frequency_penalty=2, max_tokens=40)["token_ids"]
    assert 1 < often.index(next(other for other in often if other != token)) <= 22


def test_min_tokens_holds_off_every_end(server):
    [space] = server.ask("/tokenize", {"prompt": " frog"})[1]["tokens"]
    bias = {str(space): 100}
    assert complete(server, logit_bias=bias, stop_token_ids=[space])["token_ids"] == [space]
    held = complete(server, logit_bias=bias, stop_token_ids=[space], min_tokens=4)
    assert len(held["token_ids"]) == 5 and space not in held["token_ids"][:4] and held["finish_reason"] == "stop"
    words = complete(server, stop=["a", "e"], min_tokens=6)
    assert len(words["token_ids"]) >= 6 and words["finish_reason"] == "stop"
    assert "e" in server.ask("/detokenize", {"tokens": words["token_ids"][:6]})[1]["prompt"]


def test_log_probabilities_are_those_of_the_model_whatever_is_sampled_from(server):
    plain = complete(server, max_tokens=1, logprobs=5)["logprobs"]["top_logprobs"][0]
    for more in ({"temperature": 2}, {"logit_bias": {"5": 100}}, {"repetition_penalty": 1.5}, {"top_k": 1}, {"min_p": 0.5}, {"top_p": 0.1}):
        top = complete(server, max_tokens=1, logprobs=5, seed=3, **more)["logprobs"]["top_logprobs"][0]
        assert {name: top[name] for name in plain} == plain
    assert math.fsum(math.exp(p) for p in complete(server, max_tokens=1, logprobs=20)["logprobs"]["top_logprobs"][0].values()) <= 1.000001


def test_seeds_repeat_and_differ_and_choices_are_draws_of_their_own(server):
    def drawn(seed, n=1):
        answer = server.ask(TEXT, {"prompt": "Once", "max_tokens": 16, "seed": seed, "n": n, "temperature": 1.2})[1]
        return [choice["text"] for choice in answer["choices"]]

    assert drawn(7, 4) == drawn(7, 4) and len(set(drawn(7, 4))) == 4 and drawn(7, 4)[:1] == drawn(7)
    assert drawn(7) != drawn(8) and drawn(-7) == drawn(-7) and drawn(2**63 - 1) == drawn(2**63 - 1)


FACTORS = {
    "path": [CHAT, TEXT],
    "temperature": [0, 1.3],
    "cut": [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 40, "top_p": 0.9, "min_p": 0.02}],
    "change": [{}, {"presence_penalty": 1, "frequency_penalty": 0.5}, {"repetition_penalty": 1.3}, {"logit_bias": {"5": 5, "9": -100}}],
    "logprobs": [None, 0, 3],
    "n": [1, 3],
    "stop": [{}, {"stop": ["e", "the "]}, {"stop_token_ids": [5], "min_tokens": 3}, {"ignore_eos": True}],
    "echo": [False, True],
    "stream": [False, True],
    "cache": [{}, {"cache_salt": "a"}],
    "prompts": [1, 2],
}


def all_pairs(factors, seed):
    """Rows such that any two values of two factors stand in one of them; greedily few."""
    names = list(factors)
    wanted = {(a, i, b, j) for a, b in itertools.combinations(range(len(names)), 2) for i in range(len(factors[names[a]])) for j in range(len(factors[names[b]]))}
    source, rows = random.Random(seed), []
    while wanted:
        a, i, b, j = min(wanted)
        best = max(([i if k == a else j if k == b else source.randrange(len(factors[name])) for k, name in enumerate(names)] for _ in range(60)),
                   key=lambda row: sum((p, row[p], q, row[q]) in wanted for p, q in itertools.combinations(range(len(names)), 2)))
        wanted -= {(p, best[p], q, best[q]) for p, q in itertools.combinations(range(len(names)), 2)}
        rows.append({name: factors[name][best[k]] for k, name in enumerate(names)})
    return rows


def request_of(row):
    body = {"max_tokens": 12, "seed": 3, "n": row["n"], "temperature": row["temperature"], "return_token_ids": True}
    body |= row["cut"] | row["change"] | row["stop"] | row["cache"]
    if row["path"] == CHAT:
        body |= {"messages": MESSAGES}
        if row["logprobs"] is not None:
            body |= {"logprobs": True, "top_logprobs": row["logprobs"]}
    else:
        prompts = ["Once upon a time", "The fox and the"]
        body |= {"prompt": prompts if row["prompts"] == 2 else prompts[0], "echo": row["echo"], "logprobs": row["logprobs"]}
    return row["path"], body


def choices_of(server, row):
    """What a row is answered, streamed or not, in one shape."""
    path, body = request_of(row)
    if not row["stream"]:
        status, answer, _ = server.ask(path, body)
        assert status == 200, (body, answer)
        return [(c["message"]["content"] if path == CHAT else c["text"], c["finish_reason"], c["token_ids"], c["logprobs"]) for c in answer["choices"]]
    chunks, done = server.stream(path, body)
    assert done, body
    found = {}
    for part in (part for chunk in chunks for part in chunk["choices"]):
        text, finish, ids, logprobs = found.get(part["index"], ("", None, [], None))
        assert finish is None, "nothing after the end"
        more = part["logprobs"]
        if logprobs and more:
            more = {k: (logprobs[k] + more[k] if isinstance(more[k], list) else more[k]) for k in more}
        found[part["index"]] = (text + (part["delta"].get("content", "") if path == CHAT else part["text"]), part["finish_reason"], ids + part["token_ids"], more or logprobs)
    return [found[index] for index in sorted(found)]


def check_rows(server, rows):
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        together = list(pool.map(lambda row: choices_of(server, row), rows))
    for row, found in zip(rows, together):
        assert choices_of(server, row) == found, row
        # The other way of answering gives the same.
        assert choices_of(server, row | {"stream": not row["stream"]}) == found, row


def test_every_pair_of_features_gives_alone_what_it_gave_in_company(server):
    rows = all_pairs(FACTORS, 1)
    assert len(rows) < 60
    check_rows(server, rows)


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(2, 14))
def test_other_rows_of_pairs_agree_too(server, seed):
    check_rows(server, all_pairs(FACTORS, seed))


def byte_tokens():
    """Byte to the token that is that byte alone, by the alphabet of byte-level tokenizers."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(0x100 + i) for i, byte in enumerate(sorted(set(range(256)) - set(printable)))}
    vocabulary = json.loads((ROOT / "models/demo/tokenizer.json").read_text())["model"]["vocab"]
    return {byte: vocabulary[letter] for byte, letter in letters.items()}


def test_every_byte_a_model_can_say_reaches_the_client_as_text(server):
    """All tokens of one byte, forced: alone, and mixed so that characters are cut and broken in every way."""
    single = byte_tokens()
    assert len(single) == 256
    for byte, token in single.items():
        answer = server.ask(TEXT, {"prompt": [1], "max_tokens": 1, "logprobs": 0, "logit_bias": {str(token): 100}, "temperature": 0})[1]
        assert answer["choices"][0]["text"] == answer["choices"][0]["logprobs"]["tokens"][0] == bytes([byte]).decode(errors="replace")
    for byte in (0x00, 0x0A, 0x22, 0x5C, 0x7F, 0x80, 0xC3, 0xFF):
        answer = server.ask(CHAT, {"messages": MESSAGES, "max_tokens": 1, "logprobs": True, "logit_bias": {str(single[byte]): 100}, "temperature": 0})[1]
        content = answer["choices"][0]["message"]["content"].encode()
        assert content == bytes([byte]).decode(errors="replace").strip().encode()  # a text without a header, trimmed as one
        assert b"".join(bytes(token["bytes"]) for token in answer["choices"][0]["logprobs"]["content"]) == content
    source = random.Random(5)
    high = [byte for byte in single if byte >= 0x80]
    for allowed in (list(single), high, source.sample(high, 12), [0xE2, 0x82, 0xAC], [0xF0, 0x9F, 0xA6, 0x8A, 0x61]):
        bias = {str(single[byte]): 100 for byte in allowed}
        body = {"prompt": [1, 2], "max_tokens": 60, "temperature": 2, "seed": 1, "logit_bias": bias, "n": 1, "return_token_ids": True, "ignore_eos": True}
        whole = server.ask(TEXT, body)[1]["choices"]
        chunks, done = server.stream(TEXT, body)
        assert done
        for choice in whole:
            assert "".join(part["text"] for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]) == choice["text"]
            assert choice["text"] == server.ask("/detokenize", {"tokens": choice["token_ids"]})[1]["prompt"]
