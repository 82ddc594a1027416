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


def test_what_cannot_be_compiled_is_named(server):
    for field, value in (("guided_regex", "("), ("grammar", "root ::= ("), ("guided_json", {"type": "thing"})):
        status, answer, _ = server.ask(TEXT, {"prompt": "a", field: value})
        assert status == 400 and answer["error"]["param"] == field, answer
