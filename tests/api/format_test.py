"""Answers that are held to a format, as clients ask for it."""
import json
import re

TEXT = "/v1/completions"


def text_of(server, **fields):
    status, answer, _ = server.ask(TEXT, {"prompt": "Once", "max_tokens": 60, "temperature": 1, **fields})
    assert status == 200, answer
    return answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]


def test_a_choice_is_one_of_the_texts(server):
    for seed in range(5):
        assert text_of(server, seed=seed, guided_choice=["yes", "no", "perhaps"]) in [(t, "stop") for t in ("yes", "no", "perhaps")]


def test_a_pattern_is_matched_whole(server):
    for seed in range(5):
        text, _ = text_of(server, seed=seed, structured_outputs={"regex": "[a-f]{3,8}-[0-9]{2}"})
        assert re.fullmatch("[a-f]{3,8}-[0-9]{2}", text), text


def test_json_is_of_its_schema(server):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2, 3]}, "b": {"type": "boolean"}}, "required": ["a", "b"], "additionalProperties": False}
    for seed in range(5):
        for fields in ({"guided_json": schema}, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}}):
            text, reason = text_of(server, seed=seed, max_tokens=200, **fields)
            if reason == "stop":
                value = json.loads(text)
                assert set(value) == {"a", "b"} and value["a"] in (1, 2, 3) and value["b"] in (True, False)


def test_grammars_come_in_two_manners(server):
    gbnf = '# a comment\nroot ::= item ("," item)*  # a : b\nitem ::= "a:" [0-9]{1,2}'
    lark = '// a comment\nstart: item ("," item)*\nitem: "a:" /[0-9]/~1..2'
    for fields in ({"grammar": gbnf}, {"guided_grammar": lark}, {"structured_outputs": {"grammar": lark}}, {"ebnf": 'start : "::="'}):
        text, _ = text_of(server, **fields)
        assert re.fullmatch("a:[0-9]{1,2}(,(a(:[0-9]{0,2})?)?)*|::=", text), (text, fields)


def test_what_cannot_be_compiled_is_named(server):
    for field, value in (("guided_regex", "("), ("grammar", "root ::= ("), ("guided_json", {"type": "thing"})):
        status, answer, _ = server.ask(TEXT, {"prompt": "a", field: value})
        assert status == 400 and answer["error"]["param"] == field, answer


def constraint_counts(server):
    lines = [line for line in server.get("/metrics")[1].splitlines() if line.startswith("nibble:constraint")]
    counts = {}
    for line in lines:
        name, value = line.rsplit(" ", 1)
        kind, _, rest = name.partition("kind=\"")
        counts[(name.split("{")[0].removeprefix("nibble:constraint"), rest.split('"')[0], rest.partition("result=\"")[2].split('"')[0])] = float(value)
    return counts


def test_metrics_tell_by_kind_what_formats_cost(server):
    before = constraint_counts(server)
    for pattern, expected in (("[x-z]{3}", 200), ("[x-z]{3}", 200), ("([x-z]{3}", 400)):
        assert server.ask(TEXT, {"prompt": "a", "max_tokens": 9, "guided_regex": pattern})[0] == expected
    schema = {"type": "object", "properties": {"metrics": {"const": 1}}}
    assert server.ask(TEXT, {"prompt": "a", "max_tokens": 9, "guided_json": schema})[0] == 200
    after = constraint_counts(server)
    grown = {key: value - before[key] for key, value in after.items() if value != before[key]}
    assert {key: value for key, value in grown.items() if key[0] == "s_total"} == {
        ("s_total", "regex", "compiled"): 1, ("s_total", "regex", "found"): 1, ("s_total", "regex", "refused"): 1,
        ("s_total", "json_schema", "compiled"): 1}
    assert grown["_compile_seconds_count", "", ""] == 3 and grown["_compile_seconds_sum", "", ""] > 0
    assert grown["_masks_total", "", ""] >= 2 and grown["_mask_seconds_total", "", ""] > 0
