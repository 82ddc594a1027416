"""Cases of vLLM's and llama.cpp's tests of tools, schemas and the newer endpoints, in our words; docs/api/checklist.md lists them."""
import json
import re

import pytest

from nibble_program import ROOT, run

STORY = "Tell me a story about a frog"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
BASE = {CHAT: {"messages": [{"role": "user", "content": STORY}], "max_tokens": 4}, RESPONSES: {"input": STORY, "max_output_tokens": 4},
        MESSAGES: {"messages": [{"role": "user", "content": STORY}], "max_tokens": 4}}
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
TOOL = {CHAT: {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}, RESPONSES: {"type": "function", "name": "weather", "parameters": WEATHER},
        MESSAGES: {"name": "weather", "input_schema": WEATHER}}


def ask(server, path, **fields):
    return server.ask(path, BASE[path] | fields)


def param(answer):
    return answer["error"].get("param") or answer["error"]["message"].split(" ")[0].rstrip(":")


@pytest.mark.parametrize("fields", [{}, {"tools": None}, {"tools": []}, {"tools": [], "tool_choice": "none"}, {"tool_choice": "none"}, {"tool_choice": "auto"},
                                    {"parallel_tool_calls": None}, {"parallel_tool_calls": False}])
def test_without_tools_there_is_nothing_to_choose(server, fields):
    for path in (CHAT, RESPONSES):
        status, answer, _ = ask(server, path, **fields)
        assert status == 200, answer
    assert answer["parallel_tool_calls"] is (fields.get("parallel_tool_calls") is not False)


@pytest.mark.parametrize("path, choice", [
    (CHAT, "required"), (CHAT, {"type": "function", "function": {"name": "weather"}}), (RESPONSES, "required"), (RESPONSES, {"type": "function", "name": "weather"}),
    (MESSAGES, {"type": "any"}), (MESSAGES, {"type": "tool", "name": "weather"})])
def test_a_call_of_no_tool_cannot_be_forced(server, path, choice):
    for tools in ({}, {"tools": []}):
        status, answer, _ = ask(server, path, tool_choice=choice, **tools)
        assert status == 400 and param(answer).startswith("tool"), answer


@pytest.mark.parametrize("path, choice", [
    (CHAT, {"type": "function", "function": {"name": "other"}}), (CHAT, {}), (CHAT, {"type": "function"}), (CHAT, "always"), (CHAT, 5),
    (RESPONSES, {"type": "function", "name": "other"}), (RESPONSES, {"type": "function"}), (RESPONSES, {"type": "function", "name": ""}), (RESPONSES, "always"),
    (MESSAGES, {"type": "tool", "name": "other"}), (MESSAGES, {"type": "tool"}), (MESSAGES, {"type": "always"}), (MESSAGES, "any")])
def test_a_choice_that_names_no_tool_is_refused(server, path, choice):
    status, answer, _ = ask(server, path, tools=[TOOL[path]], tool_choice=choice)
    assert status == 400 and param(answer).startswith("tool"), answer


@pytest.mark.parametrize("fields, field", [
    ({"structured_outputs": {"json": {"type": "object"}, "regex": ".*"}}, "structured_outputs"), ({"structured_outputs": 3}, "structured_outputs"),
    ({"guided_json": {"type": "object"}, "guided_regex": "a"}, "guided"), ({"response_format": {"type": "json_schema"}}, "response_format.json_schema")])
def test_one_constraint_at_a_time_and_of_its_type(server, fields, field):
    status, answer, _ = ask(server, CHAT, **fields)
    assert status == 400 and param(answer).startswith(field), answer


@pytest.mark.parametrize("text_format, pattern", [
    ({"type": "json_schema", "name": "test", "schema": {"const": "foooooo"}}, '"foooooo"'), ({"type": "json_object"}, r"\s*\{"), ({"type": "text"}, "")])
def test_a_response_has_its_text_format(server, text_format, pattern):
    status, answer, _ = ask(server, RESPONSES, text={"format": text_format}, max_output_tokens=20)
    assert status == 200 and re.match(pattern, answer["output"][-1]["content"][0]["text"]) and answer["text"]["format"]["type"] == text_format["type"], answer


def test_a_text_format_without_its_schema_is_refused(server):
    status, answer, _ = ask(server, RESPONSES, text={"format": {"type": "json_schema", "name": "test"}})
    assert status == 400 and param(answer) == "text.format.schema"


def turns(*blocks):
    return [{"role": "user", "content": "How warm is it?"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}}]},
            {"role": "user", "content": list(blocks)}]


@pytest.mark.parametrize("content", [
    [{"type": "tool_result", "tool_use_id": "a", "content": "Sunny"}], [{"type": "tool_result", "tool_use_id": "a"}],
    [{"type": "text", "text": "Here:"}, {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "Sunny"}]}],
    [{"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": "No such city"}, {"type": "text", "text": "Go on"}]])
def test_results_of_tools_are_read_in_every_form(server, content):
    status, answer, _ = ask(server, MESSAGES, messages=turns(*content), max_tokens=12)
    assert status == 200 and answer["type"] == "message" and all(block["type"] == "text" for block in answer["content"]), answer


@pytest.mark.parametrize("fields", [
    {"system": "Be short."}, {"system": [{"type": "text", "text": "Be"}, {"type": "text", "text": " short."}]}, {"temperature": 0.5}, {"top_p": 0.9}, {"top_k": 40},
    {"stop_sequences": ["\n", "END"]}, {"metadata": {"user_id": "test_user_123"}}, {"thinking": {"type": "disabled"}}, {"thinking": {"type": "adaptive"}},
    {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi there!"}, {"role": "user", "content": "How are you?"}]}])
def test_a_message_takes_what_anthropics_clients_send(server, fields):
    status, answer, _ = ask(server, MESSAGES, **fields)
    assert status == 200 and answer["type"] == "message" and set(answer) == {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"}
    assert answer["usage"]["output_tokens"] > 0


@pytest.mark.parametrize("fields, field", [
    ({"messages": None}, "messages"), ({"messages": []}, "messages"), ({"max_tokens": None}, "max_tokens"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}]}]}, "messages[0].content[0].type"),
    ({"thinking": {"type": "enabled", "budget_tokens": 50}}, "thinking.budget_tokens")])
def test_a_message_that_is_wrong_is_the_clients_fault(server, fields, field):
    status, answer, _ = ask(server, MESSAGES, **fields)
    assert status == 400 and param(answer) == field, answer


# Of llama.cpp's tests of schemas and grammars: what is taken, what is not.
SCHEMAS = {
    "an empty schema is anything": ({}, ['{}', '{"foo": "bar"}', '[]', 'null', '""'], ['']),
    "a string": ({"type": "string"}, ['"foo"', '""'], ['{}', '"foo": "bar"']),
    "a string of three at least": ({"type": "string", "minLength": 3}, ['"foo"', '"foobar"'], ['""', '"fo"']),
    "a string of three at most": ({"type": "string", "maxLength": 3}, ['""', '"foo"'], ['"foobar"']),
    "a boolean": ({"type": "boolean"}, ["true", "false"], ['"true"', "True", "FALSE"]),
    "an integer": ({"type": "integer"}, ["0", "12345", "1234567890123456"], ["01", "007", "1.5"]),
    "a const": ({"const": "foo"}, ['"foo"'], ["foo", '"bar"']),
    "a const that is no string": ({"const": True}, ["true"], ['"true"', "foo"]),
    "an enum of all kinds": ({"enum": ["red", "amber", None, 42, ["foo"]]}, ['"red"', "null", "42", '["foo"]'], ["420", "true", "foo"]),
    "a pattern": ({"type": "string", "pattern": "^[a-zA-Z0-9_-]*$"}, ['""', '"He_llo-12"'], ['"!"', '"Hello World"']),
    "a pattern of escapes": ({"type": "string", "pattern": r"^a\^\$\.\[\]\(\)\|\{\}\*\+\?b$"}, ['"a^$.[]()|{}*+?b"'], ['"ab"']),
    "a type or null": ({"type": ["array", "null"], "items": {"type": "string"}}, ["null", "[]", '["foo", "bar"]'], ["[123]", '"foo"', '["foo", 42]']),
    "so many items": ({"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 5}, ["[1, 2, 3]", "[1, 2, 3, 4, 5]"], ["[1, 2]", "[1, 2, 3, 4, 5, 6]", "1"]),
    "a tuple": ({"type": "array", "prefixItems": [{"format": "date", "type": "string"}, {"type": "integer"}], "items": False, "minItems": 2},
                ['["2012-04-23", 5]'], ['["foo", 5]', '["2012-04-23"]', '["2012-04-23", 5, 6]']),
    "a range": ({"type": "integer", "minimum": -5, "maximum": 30}, ["-5", "0", "30"], ["-6", "31", "300"]),
    "properties in their order": ({"type": "object", "properties": {"number": {"type": "number"}, "kind": {"enum": ["Street", "Avenue"]}}, "required": ["number"], "additionalProperties": False},
                                  ['{"number": 1600, "kind": "Avenue"}', '{"number": 1}'], ['{"number": "1600"}', '{"kind": "Avenue"}', '{"number": 1, "more": 2}', '{}']),
    "further properties of a type": ({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
                                     ['{"a": 1, "b": "c"}', '{"b": "c"}', '{}'], ['{"a": 1, "b": 2}']),
    "one of two kinds": ({"oneOf": [{"type": "integer", "multipleOf": 5}, {"type": "string"}]}, ["10", '"a"'], ["9", "null"]),
    "any of two, all of two": ({"allOf": [{"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"type": "integer", "minimum": 3}]}, ["3", "7"], ["null", "2"]),
    "a reference that nests": ({"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}},
                                                                    "required": ["next"], "additionalProperties": False}}},
                               ['{"next": null}', '{"next": {"next": {"next": null}}}'], ['{"next": {}}', "null"]),
}
GRAMMARS = {
    "any three around": ('root ::= ... "abc" ...', ["abcabcabc", "aaaabcccc", "\U0001f535\U0001f7e0✅abc❌\U0001f7e0\U0001f535"], ["aaabcccc", "aaaaabcccc"]),
    "a star": ('root ::= "a"*', ["a", "aaaaa"], ["b", "aab", "ba"]), "a plus": ('root ::= "a"+', ["a", "aaaaa"], ["b", "ab"]),
    "an option": ('root ::= "b" "a"?', ["b", "ba"], ["a", "baa"]),
    "words": ("root ::= cons+ vowel* cons? (vowel cons)*\nvowel ::= [aeiouy]\ncons ::= [bcdfghjklmnpqrstvwxyz]", ["yes", "no", "noyes", "crwth", "four", "bryyyy"], ["yess", "yesno", "forty"]),
    "four": ("root ::= [ab]{4}", ["aaaa", "abab"], ["a", "aaaaa"]), "four at least": ("root ::= [ab]{4,}", ["aaaa", "ababab"], ["aba"]),
    "four at most": ("root ::= [ab]{0,4}", ["a", "aaab"], ["aaaaa"]),
    "bytes": ('root ::= ("0x" [A-F0-9]{2} " "?){3,5}', ["0xFF 0x12 0xAB", "0xFF 0x12 0xAB 0x00 0x00"], ["0xFF", "0xFF 0x12", "0xFF 0x12 0xAB 0x00 0x00 0x00"]),
    "a star of a star": ("root ::= ( [x]* )*", ["x", "xx"], ["y", "yy"]),
}


def judged(tmp_path, option, text, instances):
    file = tmp_path / "rules"
    file.write_text(text)
    instances = [instance for instance in instances if instance]
    code, out, err = run("grammar", "demo", option, file, "--json", *[part for instance in instances for part in ("--check", instance)])
    assert code == 0, err
    taken = {}
    for check in json.loads(out)["checks"]:
        taken[check["instance"]] = taken.get(check["instance"], True) and check["taken"]
    return taken


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_takes_what_it_should(tmp_path, name):
    schema, good, bad = SCHEMAS[name]
    taken = judged(tmp_path, "--json-schema", json.dumps(schema), good + bad)
    assert [instance for instance in good if not taken[instance]] == [] and [instance for instance in bad if instance and taken[instance]] == []


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_grammar_takes_what_it_should(tmp_path, name):
    grammar, good, bad = GRAMMARS[name]
    taken = judged(tmp_path, "--grammar", grammar, good + bad)
    assert [text for text in good if not taken[text]] == [] and [text for text in bad if taken[text]] == []


@pytest.mark.parametrize("grammar", ["rot ::= [0-9]+", "root ::= a\nb ::= [0-9]", 'root ::= "a" | root "a"', 'root ::= x\nx ::= "a" | y "b"\ny ::= "c" | x "d"'])
def test_a_broken_grammar_is_refused_where_it_is_asked_for(server, grammar):
    status, answer, _ = ask(server, CHAT, grammar=grammar)
    assert status == 400 and param(answer) == "grammar", answer


def test_the_checklist_names_tests_that_there_are():
    text = (ROOT / "docs/api/checklist.md").read_text()
    sources = {file.stem: file.read_text() for folder in ("tests", "src") for kind in ("*_test.py", "*_test.cpp", "*_client.py") for file in (ROOT / folder).rglob(kind)}
    named = re.findall(r"`(\w+_(?:test|client)): ([^`]+)`", text)
    assert len(named) > 40
    for file, tests in named:
        for test in tests.split(", "):
            assert test in sources[file], f"{file} has no {test}"
