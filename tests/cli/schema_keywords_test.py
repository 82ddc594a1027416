"""What docs/structured_output.md says of a keyword or a format is what the program does: held to, or refused by its path."""
import json
import re
import tempfile

from nibble_program import ROOT, run

ROWS = dict(line.strip("| \n").split(" | ", 1) for line in (ROOT / "docs/structured_output.md").read_text().splitlines()
            if line.startswith("| `"))


def names(text):
    return re.findall(r"`([^`]+)`", text)


def refusal(schema):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(schema, file)
        file.flush()
        code, _, err = run("grammar", "demo", "--json-schema", file.name)
    assert code in (0, 2), err
    return err if code else None


def test_keywords_that_are_refused_are_those_of_the_code():
    [refused] = [names(keywords) for keywords, what in ROWS.items() if what.strip() == "refused"]
    source = (ROOT / "src/grammar/schema_keywords.cpp").read_text()
    body = source[source.index("Status SchemaReader::refuse_unsupported"):]
    assert re.findall(r'"([^"]+)"', body[body.index("{", body.index("for (")):body.index("}", body.index("for ("))]) == refused
    for keyword in refused:
        for schema, path in (({"type": "array", keyword: {}}, "#"), ({"properties": {"a": {keyword: {}}}}, "#/properties/a")):
            assert f"{path}/{keyword}: is not supported" in (refusal(schema) or ""), keyword


def test_formats_hold_or_are_refused_as_listed():
    held, refused = (names(part) for part in ROWS["`format`"].split("hold;"))
    source = (ROOT / "src/grammar/formats.cpp").read_text()
    known = re.findall(r'^    \{"([a-z0-9-]+)"', source, re.M)
    assert sorted(known) == sorted(held + refused)
    for name in held:
        assert refusal({"type": "string", "format": name}) is None, name
    for name in refused:
        assert f'#/format: "{name}" is not supported' in (refusal({"type": "string", "format": name}) or ""), name


def test_opposites_that_cannot_be_said_are_refused_by_their_path():
    [row] = [what for keywords, what in ROWS.items() if keywords == "`oneOf`, `not`"]
    members = {
        "patternProperties": {"patternProperties": {"^a": {"type": "string"}}},
        "additionalProperties": {"additionalProperties": False},
        "propertyNames": {"propertyNames": {"maxLength": 2}},
    }
    inside = {
        "uniqueItems": {"uniqueItems": True},
    }
    assert sorted(set(names(row))) == sorted([*members, *inside, "minProperties"])
    for keyword, schema in inside.items():
        assert f"#/not/{keyword}: " in (refusal({"not": schema}) or ""), keyword
    for keyword, schema in members.items():
        assert refusal({"not": schema}) is None, keyword
        assert f"#/not/{keyword}: " in (refusal({"type": "object", "minProperties": 2, "not": schema}) or ""), keyword
        four = {"allOf": [{"not": schema}] + [{"not": {"additionalProperties": {"const": i}}} for i in range(3)]}
        assert f"#/allOf/0/not/{keyword}: " in (refusal(four) or ""), keyword
