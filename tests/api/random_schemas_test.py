"""Answers to schemas drawn at random, at temperature 1: each finished one is valid by an implementation that is not ours."""
import json
import random
from concurrent.futures import ThreadPoolExecutor

import jsonschema_rs
import pytest

NAMES = ["a", "b", "id", "name", "kind", "x-y", "né", 'q"']


def integers(draw):
    schema = {"type": "integer"}
    if draw.random() < 0.7:
        schema |= {"minimum": draw.randint(-50, 5), "maximum": draw.randint(6, 1200)}
    if draw.random() < 0.2:
        schema["multipleOf"] = draw.choice([2, 3, 5])
    return schema


def numbers(draw):
    low = draw.randint(-10, 10)
    return {"type": "number", draw.choice(["minimum", "exclusiveMinimum"]): low, "maximum": low + draw.choice([0.5, 2, 100])}


def strings(draw):
    schema = {"type": "string"}
    match draw.randrange(4):
        case 0:
            schema |= {"minLength": draw.randint(0, 3), "maxLength": draw.randint(3, 12)}
        case 1:
            schema["pattern"] = draw.choice(["^[a-c]{1,4}$", "^(?!no)[a-z]{2,5}$", "^\\d{2,3}-[A-F]+$", "^(yes|no)?$"])
            schema["maxLength"] = 9
        case 2:
            schema["format"] = draw.choice(["date", "time", "ipv4", "uuid"])
        case 3:
            schema = {"enum": draw.sample(["red", "green", "blue", "é\n", "", "nu\"ll"], 3)}
    return schema


def arrays(draw, depth):
    least = draw.randint(0, 2)
    schema = {"type": "array", "minItems": least, "maxItems": least + draw.randint(0, 2), "items": any_schema(draw, depth - 1)}
    if draw.random() < 0.3:
        schema["items"] = draw.choice([{"enum": [1, 2, "x", None]}, {"type": "integer", "minimum": 0, "maximum": 9}, {"type": "boolean"}])
        schema |= {"uniqueItems": True, "maxItems": schema["minItems"] + 1}
    elif draw.random() < 0.3:
        schema["prefixItems"] = [any_schema(draw, depth - 1)]
    return schema


def objects(draw, depth):
    names = draw.sample(NAMES, draw.randint(1, 4))
    schema = {"type": "object", "properties": {name: any_schema(draw, depth - 1) for name in names}}
    schema["required"] = [name for name in names if draw.random() < 0.5]
    match draw.randrange(4):
        case 0:
            least = draw.randint(0, len(names))
            schema |= {"minProperties": least, "maxProperties": max(least, len(schema["required"])), "additionalProperties": False}
        case 1:
            schema |= {"propertyNames": {"maxLength": 5}, "additionalProperties": {"type": "boolean"}, "minProperties": 2, "maxProperties": 5}
        case _:
            schema["additionalProperties"] = False
    if draw.random() < 0.2:
        schema["dependentRequired"] = {names[0]: [names[-1]]}
    return schema


def any_schema(draw, depth):
    if depth > 0 and draw.random() < 0.6:
        return draw.choice([arrays, objects])(draw, depth)
    match draw.randrange(8):
        case 0:
            return {"anyOf": [integers(draw), strings(draw)]}
        case 1:
            return {"oneOf": [integers(draw), {"type": "integer", "minimum": 3, "maximum": 2000}]}
        case 2:
            return {"allOf": [integers(draw), {"not": {"multipleOf": 7}}]}
        case 3:
            return {"const": draw.choice([None, True, 17, "const", {"k": [1, 2]}])}
        case 4:
            return numbers(draw)
        case 5:
            return {"type": draw.sample(["boolean", "null", "integer"], 2)}
        case _:
            return draw.choice([integers, strings])(draw)


def check(server, number):
    draw = random.Random(number)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **draw.choice([arrays, objects])(draw, 3)}
    fields = {"prompt": "Once", "temperature": 1, "seed": number, "guided_json": schema}
    status, whole, _ = server.ask("/v1/completions", fields | {"max_tokens": 240})
    if status == 400:
        message = whole["error"]["message"]
        assert "no text at all fits" in message or "#" in message, (schema, message)
        return "refused"
    assert status == 200, (schema, whole)
    choice = whole["choices"][0]
    text = choice["text"]
    # A short answer is the beginning of the long one: the same seed draws the same tokens.
    _, cut, _ = server.ask("/v1/completions", fields | {"max_tokens": draw.randint(1, 20)})
    assert text.startswith(cut["choices"][0]["text"].rstrip("\ufffd")), (schema, text, cut)
    if choice["finish_reason"] != "stop":
        return "cut"
    assert jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(json.loads(text)), (schema, text)
    return "finished"


def check_many(server, numbers):
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda number: check(server, number), numbers))
    assert outcomes.count("finished") > len(outcomes) / 2, outcomes
    assert outcomes.count("refused") < len(outcomes) / 10, outcomes


@pytest.mark.long
def test_answers_are_valid(server):
    check_many(server, range(50))


@pytest.mark.extended
def test_a_thousand_answers_are_valid(server):
    check_many(server, range(50, 1050))
