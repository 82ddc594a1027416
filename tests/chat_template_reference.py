"""Chat templates rendered by jinja2 with the settings and globals that transformers gives it, and the
conversations that the tests render."""
import datetime
import functools
import json

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import jinja2.utils

NOW = datetime.datetime(2025, 8, 5, 13, 14, 15)


class Generation(jinja2.ext.Extension):
    """{% generation %}...{% endgeneration %} prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("print_body"), [], [], body).set_lineno(line)

    def print_body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(args[0], attributes)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"no attribute {name!r}")


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.lru_cache(maxsize=256)
def compiled(template):
    return ENVIRONMENT.from_string(template)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["namespace"] = Namespace
    env.globals["strftime_now"] = NOW.strftime
    return env


ENVIRONMENT = environment()


def render(template, variables):
    """(text, None) or (None, what went wrong)."""
    try:
        return compiled(template).render(**variables), None
    except Exception as error:  # a template may fail in any way; nibble must fail then too
        return None, f"{type(error).__name__}: {error}"


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Current weather in a place.", "parameters": {
        "type": "object", "properties": {
            "place": {"type": "string", "description": "City and country, e.g. Łódź, Poland"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": "integer", "minimum": 1}},
        "required": ["place"]}}}
SEARCH = {"type": "function", "function": {
    "name": "search", "description": "Looks \"things\" up.\nTwo lines, <b>not</b> HTML & co.", "parameters": {
        "type": "object", "properties": {
            "query": {"type": ["string", "null"]},
            "filters": {"type": "array", "items": {"type": "object", "properties": {
                "field": {"type": "string"}, "values": {"type": "array", "items": {"type": "number"}}}}},
            "deep": {"oneOf": [{"type": "boolean"}, {"type": "string", "enum": ["yes", "no"]}], "default": False},
            "limit": {"type": "number", "default": 1.5, "nullable": True}},
        "required": []}}}
PING = {"type": "function", "function": {"name": "ping", "description": "", "parameters": {"type": "object", "properties": {}}}}

TOOL_SETS = [None, [], [WEATHER], [WEATHER, SEARCH, PING]]


def call(name, arguments, identifier="call_1"):
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def conversations(as_text=False):
    """Message lists; tool arguments as objects, or as JSON text as some templates want them."""
    written = json.dumps if as_text else (lambda value: value)
    user = {"role": "user", "content": "What's the weather in Łódź? 🌧️"}
    answer = {"role": "assistant", "content": "It rains."}
    asks = {"role": "assistant", "content": "", "tool_calls": [
        call("get_weather", written({"place": "Łódź", "days": 2, "unit": "celsius"}))]}
    asks_twice = {"role": "assistant", "content": None, "tool_calls": [
        call("search", written({"query": "a \"quote\"\n", "filters": [{"field": "x", "values": [1, 2.5, -1e-07]}],
                                "deep": True, "limit": None})),
        call("ping", written({}), "call_2")]}
    told = {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": '{"sky": "rain"}'}
    told_more = {"role": "tool", "tool_call_id": "call_2", "name": "ping", "content": "pong"}
    system = {"role": "system", "content": "  You are terse.\n"}
    thinks = {"role": "assistant", "content": "It rains.", "reasoning_content": "Hm.\n\nRain?", "thinking": "Hm.\n\nRain?"}
    inline = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nIt rains."}
    return [
        [user],
        [system, user],
        [{"role": "developer", "content": "Be kind."}, user],
        [user, answer, {"role": "user", "content": "And tomorrow?"}],
        [system, user, inline, {"role": "user", "content": "  spaced  \n"}, answer],
        [user, thinks, {"role": "user", "content": "Sure?"}, thinks],
        [user, asks, told],
        [system, user, asks, told, answer, {"role": "user", "content": "Thanks"}],
        [user, asks_twice, told, told_more],
        [user, asks_twice, told, told_more, thinks],
        [user, {**asks, "content": "Let me see.", "reasoning_content": "Call it."}, told, asks, told],
        [answer],
        [user, user, answer, answer],
        [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
        [{"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": " two"}]}],
        [{"role": "narrator", "content": "An unknown role."}],
        [{"role": "user"}],
        [],
    ]


VARIABLES = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {},
    {"add_generation_prompt": True, "enable_thinking": False, "reasoning_effort": "high"},
    {"add_generation_prompt": True, "enable_thinking": True, "thinking": True, "model_identity": "You are a fox.",
     "builtin_tools": ["browser", "python"]},
    {"add_generation_prompt": True, "thinking": False, "clear_thinking": False, "preserve_thinking": True},
]
MODEL_VARIABLES = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}
