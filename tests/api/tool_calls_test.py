"""Calls that a request forces or binds: the demo model cannot follow instructions, so what comes out is the grammar's doing."""
import json

import jsonschema_rs
import openai
import pydantic
import pytest

from serving import Server

STORY = [{"role": "user", "content": "Tell me a story about a frog"}]
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo", "Bonn"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
                                            "units": {"anyOf": [{"enum": ["C", "F"]}, {"type": "null"}]}},
           "required": ["city", "days", "units"], "additionalProperties": False}
TREE = {"type": "object", "properties": {"value": {"type": "integer", "minimum": 0, "maximum": 99}, "left": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}},
        "required": ["value", "left"], "additionalProperties": False}
SCHEMAS = {"weather": WEATHER, "tree": TREE}


def function(name, **more):
    return {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": SCHEMAS[name]} | more}


TOOLS = [function("weather"), function("tree")]


@pytest.fixture(scope="module")
def roomy():
    server = Server()
    yield server
    assert server.process.poll() is None and server.stop() == 0


@pytest.fixture(scope="module")
def client(roomy):
    return openai.OpenAI(base_url=roomy.url + "/v1", api_key="none", max_retries=0)


def chat(client, **more):
    return client.chat.completions.create(model="demo", messages=STORY, **{"max_tokens": 300, "temperature": 1, "tools": TOOLS} | more)


def check(name, arguments):
    jsonschema_rs.validate(SCHEMAS[name], json.loads(arguments))


def test_a_required_call_is_a_call_that_fits_whatever_the_seed(client):
    names = set()
    for seed in range(8):
        choice = chat(client, tool_choice="required", seed=seed).choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        call, = choice.message.tool_calls
        check(call.function.name, call.function.arguments)
        names.add(call.function.name)
    assert names <= set(SCHEMAS)


def test_a_named_call_is_of_that_function_and_ends_with_stop_as_openai_has_it(client):
    for seed in range(3):
        for name in SCHEMAS:
            choice = chat(client, tool_choice={"type": "function", "function": {"name": name}}, seed=seed).choices[0]
            assert choice.finish_reason == "stop" and [call.function.name for call in choice.message.tool_calls] == [name]
            check(name, choice.message.tool_calls[0].function.arguments)


def test_allowed_tools_are_the_only_ones(client):
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "tree"}}]}}
    for seed in range(3):
        choice = chat(client, tool_choice=allowed, seed=seed).choices[0]
        assert choice.message.tool_calls[0].function.name == "tree" and choice.finish_reason == "tool_calls"


def test_a_stream_of_a_forced_call_joins_to_the_whole_answer(client):
    for seed in range(2):
        whole = chat(client, tool_choice="required", seed=seed).choices[0].message.tool_calls[0].function
        chunks = [chunk.choices[0] for chunk in chat(client, tool_choice="required", seed=seed, stream=True)]
        deltas = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
        assert [delta.function.name for delta in deltas if delta.function.name] == [whole.name] and deltas[0].id and deltas[0].type == "function"
        assert all(delta.index == 0 and not delta.id for delta in deltas[1:]) and chunks[-1].finish_reason == "tool_calls"
        assert "".join(delta.function.arguments or "" for delta in deltas) == whole.arguments
        assert not any(chunk.delta.content for chunk in chunks)


def test_a_cut_call_is_the_beginning_of_one(client):
    for limit in range(20, 40, 5):
        choice = chat(client, tool_choice="required", seed=1, max_tokens=limit).choices[0]
        whole = chat(client, tool_choice="required", seed=1).choices[0].message.tool_calls[0].function.arguments
        if choice.finish_reason == "length" and choice.message.tool_calls:
            assert whole.startswith(choice.message.tool_calls[0].function.arguments)


def test_calls_are_the_same_alone_and_in_company(client):
    alone = [chat(client, tool_choice="required", seed=seed).choices[0].message.tool_calls[0].function.arguments for seed in (3, 4)]
    together = chat(client, tool_choice="required", seed=3, n=3)
    assert together.choices[0].message.tool_calls[0].function.arguments == alone[0]


def test_strict_tools_leave_the_text_before_them_free(client):
    plain = chat(client, seed=5, max_tokens=20).choices[0].message.content
    bound = chat(client, seed=5, max_tokens=20, tools=[function("weather", strict=True)]).choices[0].message
    again = chat(client, seed=5, max_tokens=20, tools=[function("weather", strict=True)]).choices[0].message
    assert plain is not None and bound == again


def test_a_format_beside_tools_is_an_answer_of_the_format_or_a_call(client):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2, 3]}}, "required": ["a"], "additionalProperties": False}
    kinds = set()
    for seed in range(6):
        answer = chat(client, seed=seed, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}).choices[0]
        if answer.message.tool_calls:
            check(answer.message.tool_calls[0].function.name, answer.message.tool_calls[0].function.arguments)
            assert answer.message.content is None and answer.finish_reason == "tool_calls"
        else:
            jsonschema_rs.validate(schema, json.loads(answer.message.content))
            assert answer.finish_reason == "stop"
        kinds.add(bool(answer.message.tool_calls))
    assert kinds


def test_log_probabilities_beside_tools_are_those_of_the_content(client):
    answer = chat(client, seed=5, max_tokens=12, logprobs=True, top_logprobs=2).choices[0]
    assert b"".join(bytes(token.bytes) for token in answer.logprobs.content).decode() == answer.message.content
    forced = chat(client, seed=5, tool_choice="required", logprobs=True).choices[0]
    assert forced.logprobs.content == [] and forced.message.tool_calls


class Weather(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=8)
    days: int = pydantic.Field(ge=1, le=9)


def test_the_sdks_parse_takes_pydantic_tools_that_are_strict(client):
    tool = openai.pydantic_function_tool(Weather)
    assert tool["function"]["strict"] is True
    answer = client.chat.completions.parse(model="demo", messages=STORY, tools=[tool], tool_choice="required", max_tokens=300, temperature=1, seed=2)
    call, = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather) and answer.choices[0].finish_reason == "tool_calls"
    with client.chat.completions.stream(model="demo", messages=STORY, tools=[tool], tool_choice="required", max_tokens=300, temperature=1, seed=2) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds and kinds.count("tool_calls.function.arguments.done") == 1
    assert final.choices[0].message.tool_calls[0].function.parsed_arguments == call.function.parsed_arguments


def test_a_response_calls_and_goes_on_from_the_result(client):
    tools = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}]
    ask = {"model": "demo", "input": "How is the weather?", "tools": tools, "max_output_tokens": 300, "temperature": 1, "extra_body": {"seed": 3}}
    for choice in ("required", {"type": "function", "name": "weather"}, {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}):
        answer = client.responses.create(**ask, tool_choice=choice)
        call = answer.output[-1]
        assert call.type == "function_call" and call.name == "weather" and answer.status == "completed"
        check("weather", call.arguments)
    events = list(client.responses.create(**ask, tool_choice="required", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta") == done[0].arguments
    following = client.responses.create(model="demo", previous_response_id=answer.id, max_output_tokens=4, tools=tools,
                                        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}])
    assert following.usage.input_tokens > answer.usage.input_tokens


def test_the_anthropic_sdk_gets_tool_use(roomy):
    import anthropic
    claude = anthropic.Anthropic(base_url=roomy.url, api_key="none", max_retries=0)
    tools = [{"name": name, "description": "A tool.", "input_schema": schema} for name, schema in SCHEMAS.items()]
    for choice in ({"type": "any"}, {"type": "tool", "name": "tree"}, {"type": "any", "disable_parallel_tool_use": True}):
        ask = {"model": "demo", "max_tokens": 300, "messages": STORY, "tools": tools, "tool_choice": choice, "extra_body": {"seed": 4, "temperature": 1}}
        answer = claude.messages.create(**ask)
        block = answer.content[-1]
        assert answer.stop_reason == "tool_use" and block.type == "tool_use" and len(answer.content) == 1
        jsonschema_rs.validate(SCHEMAS[block.name], block.input)
        with claude.messages.stream(**ask) as stream:
            assert stream.get_final_message().content[-1].input == block.input


@pytest.mark.parametrize("param, fields", [
    ("tool_choice", {"tools": [], "tool_choice": "required"}), ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "other"}}}),
    ("ignore_eos", {"tool_choice": "required", "ignore_eos": True}),
    ("tools[1].function.parameters", {"tools": [TOOLS[0], {"type": "function", "function": {"name": "f", "strict": True, "parameters": {
        "type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}}}]}),
    ("tools[0].function.parameters", {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "array"}}}]}),
])
def test_what_cannot_be_held_to_is_refused_by_name(roomy, param, fields):
    status, answer, _ = roomy.ask("/v1/chat/completions", {"messages": STORY, "tools": TOOLS} | fields)
    assert status == 400 and answer["error"]["param"] == param, answer


def test_what_cannot_be_held_to_and_was_not_promised_is_any_object(client):
    loose = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}}}
    choice = chat(client, tools=[loose], tool_choice="required", max_tokens=400, seed=1).choices[0]
    assert choice.message.tool_calls[0].function.name == "f"
    if choice.finish_reason == "tool_calls":
        assert isinstance(json.loads(choice.message.tool_calls[0].function.arguments), dict)
