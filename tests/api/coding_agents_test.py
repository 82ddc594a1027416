"""What programs like Codex send to /v1/responses and programs like Claude Code to /v1/messages, field by field, and that the same
conversation has the same prompt and the same answer whichever of the endpoints it comes by."""
import json

import pytest

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"], "additionalProperties": False}
SHELL = {"name": "shell", "description": "Runs a command."}
CHAT_TOOL = {"type": "function", "function": SHELL | {"parameters": SCHEMA}}
CODEX_TOOL = {"type": "function", **SHELL, "strict": False, "parameters": SCHEMA}
CLAUDE_TOOL = {**SHELL, "input_schema": {**SCHEMA}, "cache_control": {"type": "ephemeral", "ttl": "1h"}, "eager_input_streaming": True}

CODEX_HEADERS = {"OpenAI-Beta": "responses=experimental", "originator": "codex_cli_rs", "session_id": "0199", "conversation_id": "0199", "version": "0.99.0",
                 "User-Agent": "codex_cli_rs/0.99.0 (Debian 12; x86_64) xterm", "Accept": "text/event-stream"}
CLAUDE_HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14",
                  "anthropic-dangerous-direct-browser-access": "true", "x-app": "cli", "x-stainless-helper-method": "stream", "User-Agent": "claude-cli/2.1.0 (external, cli)"}


def parts(text, kind="input_text"):
    return [{"type": kind, "text": text}]


def codex(**more):
    return {"model": "demo", "instructions": "Be short.", "input": [{"type": "message", "role": "user", "content": parts("list")}], "tools": [CODEX_TOOL], "tool_choice": "auto",
            "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "stream": True, "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "0199", "text": {"verbosity": "low"}, "max_output_tokens": 4} | more


def claude(**more):
    return {"model": "demo", "max_tokens": 4, "system": [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "list", "cache_control": {"type": "ephemeral"}}]}], "tools": [CLAUDE_TOOL],
            "metadata": {"user_id": "user_1_account__session_2"}, "thinking": {"type": "enabled", "budget_tokens": 31999}, "temperature": 1, "stream": True,
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}} | more


def last_response(server, body):
    """The last event's response; the events are numbered without gaps."""
    status, _, _ = server.ask(RESPONSES, body | {"stream": False}, **CODEX_HEADERS)
    assert status == 200
    events = sse(server, RESPONSES, body, CODEX_HEADERS)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    return events[-1]["response"]


def sse(server, path, body, headers):
    import urllib.request
    request = urllib.request.Request(server.url + path, data=json.dumps(body | {"stream": True}).encode(), headers={"Content-Type": "application/json"} | headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        lines = [line.partition("\n") for line in answer.read().decode().strip().split("\n\n") if not line.startswith(":")]
    events = [json.loads(data.removeprefix("data: ")) for _, _, data in lines]
    assert [name.removeprefix("event: ") for name, _, _ in lines] == [event["type"] for event in events]
    return events


def test_what_codex_sends_first_is_served(server):
    assert last_response(server, codex())["usage"]["output_tokens"] > 0
    empty = codex(tools=[], reasoning=None, include=[], text=None, service_tier=None, prompt_cache_key=None, client_metadata={"a": "b"})
    assert last_response(server, empty)["output"] is not None
    assert server.get("/v1/models?client_version=0.99.0")[0] == 200


def test_what_claude_code_sends_first_is_served(server):
    events = sse(server, MESSAGES + "?beta=true", claude(), CLAUDE_HEADERS)
    assert [event["type"] for event in events][:2] == ["message_start", "ping"] and events[-1]["type"] == "message_stop"
    quota = {"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}], "metadata": {"user_id": "u"}}
    assert server.ask(MESSAGES + "?beta=true", quota, **CLAUDE_HEADERS)[0] == 200
    counted = {name: value for name, value in claude().items() if name in ("model", "system", "messages", "tools", "thinking")}
    assert server.ask(MESSAGES + "/count_tokens?beta=true", counted, **CLAUDE_HEADERS)[1]["input_tokens"] > 10
    assert server.raw(b"HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200")


# A conversation with calls and their results, as each endpoint has it; harmony's calls are one a message.
HISTORY = {
    CHAT: [{"role": "user", "content": "list"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "shell", "arguments": '{"command":"ls"}'}}]},
           {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"}, {"role": "assistant", "content": "It is a.txt"}, {"role": "user", "content": "go on"}],
    RESPONSES: [{"type": "message", "role": "user", "content": parts("list")},
                {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
                {"type": "function_call", "id": None, "name": "shell", "arguments": '{"command":"ls"}', "call_id": "call_1", "status": "completed"},
                {"type": "function_call_output", "call_id": "call_1", "output": parts("a.txt")},
                {"type": "message", "role": "assistant", "phase": "final_answer", "content": parts("It is a.txt", "output_text")}, {"type": "message", "role": "user", "content": parts("go on")}],
    MESSAGES: [{"role": "user", "content": [{"type": "text", "text": "list"}]},
               {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": ""}, {"type": "tool_use", "id": "call_1", "name": "shell", "input": {"command": "ls"}, "caller": {"type": "direct"}}]},
               {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "a.txt"}], "is_error": False, "cache_control": {"type": "ephemeral"}}]},
               {"role": "assistant", "content": [{"type": "text", "text": "It is a.txt", "citations": None}]}, {"role": "user", "content": "go on"}],
}


def said(server, path, body, headers):
    """(tokens of the prompt, the answer's text)"""
    status, answer, _ = server.ask(path, body | {"stream": False}, **headers)
    assert status == 200, answer
    usage = answer["usage"]
    if path == CHAT:
        return usage["prompt_tokens"], answer["choices"][0]["message"]["content"]
    if path == RESPONSES:
        return usage["input_tokens"], "".join(part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"])
    return usage["input_tokens"] + usage["cache_read_input_tokens"], "".join(block["text"] for block in answer["content"] if block["type"] == "text")


@pytest.mark.parametrize("turns", [1, 3, 5])
def test_a_conversation_is_the_same_by_every_endpoint(server, turns):
    """So many of its turns: a question; a question, a call and its result; all of it."""
    items = {1: 1, 3: 4, 5: 6}[turns]
    same = {"seed": 3, "temperature": 1}
    chat = said(server, CHAT, {"messages": [{"role": "system", "content": "Be short."}, *HISTORY[CHAT][:turns]], "tools": [CHAT_TOOL], "max_tokens": 12} | same, {})
    assert chat[1]
    assert said(server, RESPONSES, codex(input=HISTORY[RESPONSES][:items], max_output_tokens=12) | same, CODEX_HEADERS) == chat
    assert said(server, MESSAGES, claude(messages=HISTORY[MESSAGES][:turns], max_tokens=12) | same, CLAUDE_HEADERS) == chat


@pytest.mark.parametrize("path, body", [
    (RESPONSES, codex(input=[*HISTORY[RESPONSES][:3], {"type": "function_call_output", "call_id": "call_1", "output": ""}])),
    (RESPONSES, codex(input=[*HISTORY[RESPONSES][:2], HISTORY[RESPONSES][2] | {"arguments": "no JSON"}, *HISTORY[RESPONSES][3:]])),
    (RESPONSES, codex(input=[{"type": "message", "role": "developer", "content": parts("<permissions>")}, *HISTORY[RESPONSES]], parallel_tool_calls=True)),
    (MESSAGES, claude(messages=[*HISTORY[MESSAGES][:2], {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "is_error": True, "content": "no"}, {"type": "text", "text": "go on"}]}])),
    (MESSAGES, claude(messages=[*HISTORY[MESSAGES][:2], {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1"}]}])),
    (MESSAGES, claude(messages=[*HISTORY[MESSAGES][:1], {"role": "assistant", "content": []}, {"role": "user", "content": "go on"}])),
    (MESSAGES, claude(messages=[*HISTORY[MESSAGES][:1], {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "abc"}]}, {"role": "user", "content": "go on"}])),
    (MESSAGES, claude(messages=[*HISTORY[MESSAGES], {"role": "system", "content": "The date changed."}, {"role": "user", "content": "go on"}])),
    (MESSAGES, claude(tools=[CLAUDE_TOOL | {"type": "custom", "defer_loading": False, "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", **SCHEMA}}])),
    (MESSAGES, claude(messages=[*HISTORY[MESSAGES][:1], {"role": "assistant", "content": "{"}], tools=[], stop_sequences=["}"])),
])
def test_turns_that_such_programs_send_are_served(server, path, body):
    status, answer, _ = server.ask(path, body | {"stream": False}, **CLAUDE_HEADERS)
    assert status == 200, answer


def test_what_claude_code_tells_anthropic_of_itself_stands_in_no_prompt(server):
    """It is another one each time: with it, no two prompts would begin alike and share what is computed of them."""
    asked = claude(stream=False, system=[{"type": "text", "text": "Be short."}])
    plain = said(server, MESSAGES, asked | {"seed": 1}, CLAUDE_HEADERS)
    for version in ("cc_version=2.1.37.abc; cc_entrypoint=cli;", "cc_version=2.1.160.bca; cc_entrypoint=cli; cch=d1d48;"):
        system = [{"type": "text", "text": "x-anthropic-billing-header: " + version}, *asked["system"]]
        assert said(server, MESSAGES, asked | {"system": system, "seed": 1}, CLAUDE_HEADERS) == plain


BLOCKS = [({"type": "tool_use", "name": "f", "input": {}}, "id"), ({"type": "tool_use", "id": "a", "input": {}}, "name"), ({"type": "tool_use", "id": "a", "name": "f"}, "input"),
          ({"type": "text"}, "text"), ({"type": "thinking", "signature": "a"}, "thinking"), ({"type": "tool_reference", "tool_name": "f"}, "type")]


@pytest.mark.parametrize("block, member", BLOCKS, ids=lambda value: value if isinstance(value, str) else value["type"])
def test_a_block_without_what_it_must_have_names_the_member(server, block, member):
    status, answer, _ = server.ask(MESSAGES, claude(stream=False, messages=[*HISTORY[MESSAGES][:1], {"role": "assistant", "content": [block]}, *HISTORY[MESSAGES][4:]]))
    assert status == 400 and answer["error"]["message"].startswith(f"messages[1].content[0].{member} "), answer
    status, answer, _ = server.ask(MESSAGES, claude(stream=False, messages=[{"role": "user", "content": [{"type": "tool_result"}]}]))
    assert status == 400 and answer["error"]["message"].startswith("messages[0].content[0].tool_use_id "), answer


def test_a_format_beside_a_call_by_name_is_the_calls(server):
    """The choice says that the answer is a call: there is no text for the format."""
    named = {"type": "function", "function": {"name": "shell"}}
    status, answer, _ = server.ask(CHAT, {"messages": HISTORY[CHAT][:1], "tools": [CHAT_TOOL], "tool_choice": named, "structured_outputs": {"json": {"type": "object"}}, "max_tokens": 60})
    assert status == 200 and answer["choices"][0]["message"]["tool_calls"] and answer["choices"][0]["message"]["content"] is None, answer


HOSTED = ["web_search", "web_search_preview", "file_search", "code_interpreter", "computer_use_preview", "computer", "mcp", "image_generation", "local_shell", "shell", "apply_patch",
          "tool_search", "custom"]
OF_ANTHROPIC = ["web_search_20250305", "web_fetch_20250910", "code_execution_20250825", "bash_20250124", "text_editor_20250728", "computer_20250124", "memory_20250818",
                "tool_search_tool_regex_20251119", "mcp_toolset"]


@pytest.mark.parametrize("path, kind", [*((RESPONSES, kind) for kind in HOSTED), *((MESSAGES, kind) for kind in OF_ANTHROPIC),
                                        *((CHAT, kind) for kind in ("browser", "python", "web_search", "custom"))])
def test_a_tool_that_a_server_would_run_is_refused_by_its_name(server, path, kind):
    base = {CHAT: {"messages": HISTORY[CHAT][:1], "max_tokens": 2}, RESPONSES: codex(stream=False), MESSAGES: claude(stream=False)}[path]
    own = {CHAT: CHAT_TOOL, RESPONSES: CODEX_TOOL, MESSAGES: CLAUDE_TOOL}[path]
    status, answer, _ = server.ask(path, base | {"tools": [own, {"type": kind, "name": "x"}]})
    assert status == 400 and answer["error"]["message"].startswith(f'tools[1].type "{kind}" is not served'), answer
    if path != MESSAGES:
        assert answer["error"]["param"] == "tools[1].type"
        status, answer, _ = server.ask(path, base | {"tools": [own], "tool_choice": {"type": kind}})
        assert status == 400 and answer["error"]["param"] == "tool_choice.type" and f'"{kind}"' in answer["error"]["message"], answer


@pytest.mark.parametrize("item", [{"type": "web_search_call", "id": "ws_1", "status": "completed"}, {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": "x"},
                                  {"type": "local_shell_call", "call_id": "a", "action": {}}, {"type": "mcp_call"}, {"type": "compaction", "encrypted_content": "x"}])
def test_items_of_such_tools_are_refused_by_their_type(server, item):
    status, answer, _ = server.ask(RESPONSES, codex(input=[item, *HISTORY[RESPONSES]], stream=False))
    assert status == 400 and answer["error"]["param"] == "input[0].type" and f'"{item["type"]}"' in answer["error"]["message"], answer


def test_what_is_not_served_names_paths_that_are(server):
    status, answer, _ = server.ask("/v1/messages/batches", {"requests": []}, **{"anthropic-version": "2023-06-01"})
    assert status == 404 and answer["type"] == "error" and "/v1/messages" in answer["error"]["message"].partition("use ")[2], answer
