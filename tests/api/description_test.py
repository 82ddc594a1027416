"""schemathesis reads /openapi.json and asks what nobody here thought of: no 5xx, and answers as they are described."""
import json
import re

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (content_type_conformance, negative_data_rejection, response_schema_conformance,
                                               status_code_conformance)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance, negative_data_rejection]


# What of a field its schema leaves open, so that a body that fits may still be refused for it: texts in languages of their own,
# items and blocks of many kinds, schemas, rules between fields.
OPEN_FIELDS = {"/v1/chat/completions": {"reasoning_effort", "messages", "tools", "tool_choice", "chat_template"},
               "/v1/completions": {"prompt"},
               "/v1/responses": {"input", "include", "text", "tools", "tool_choice", "background", "reasoning"},
               "/v1/messages": {"messages", "system", "tools", "tool_choice", "output_config", "output_format", "thinking"}}
FORMATS = {"response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "json_schema", "regex",
           "grammar", "ebnf", "ignore_eos"}


def may_be_refused(path, error):
    field = re.split(r"[.\[]", error["param"] or "")[0]
    return error["code"] == "context_length_exceeded" or field in OPEN_FIELDS[path] or (path.endswith("completions") and field in FORMATS)


def settle(body, path):
    """What a schema cannot say: rules between fields, the model's name and vocabulary, and ends to long answers."""
    known = lambda ids: [token % 400 for token in ids]
    body |= {"model": None, "max_tokens": 2, "max_completion_tokens": 2, "min_tokens": None, "best_of": None}
    if body.get("n") and body["n"] > 4:
        body["n"] = 2
    if not body.get("stream"):
        body["stream_options"] = None
    if path.endswith("chat/completions"):
        body["logprobs"] = body.get("logprobs") or body.get("top_logprobs") is not None
        for message in body["messages"]:
            message["content"] = message.get("content") or "a"
    else:
        prompt = body["prompt"] or "a"
        if isinstance(prompt, list):
            prompt = [item or "a" if isinstance(item, str) else known(item)[:40] if isinstance(item, list) else item % 400 for item in prompt][:4]
        body["prompt"] = prompt
        del body["max_completion_tokens"]
    if body.get("stream"):
        body["prompt_logprobs"] = None
    if body.get("logprobs") in (None, False):
        body["constrained_logprobs"] = None
    for ids in ("stop_token_ids", "allowed_token_ids"):
        body[ids] = known(body.get(ids) or [])
    if any(body.get(field) is not None for field in FORMATS):
        body["allowed_token_ids"] = body["bad_words"] = None
    body["logit_bias"] = {token: bias for token, bias in (body.get("logit_bias") or {}).items() if len(token) < 4}


def ask(case, server):
    path = case.operation.path
    positive = case.meta.generation.mode.is_positive and path in OPEN_FIELDS
    if positive and path.endswith("/completions"):
        settle(case.body, path)
    elif positive:
        case.body |= {"model": None, "previous_response_id": None}
        case.body |= {"max_output_tokens": 2} if path == "/v1/responses" else {"max_tokens": 2}
    answer = case.call(base_url=server.url, timeout=60)
    case.validate_response(answer, checks=CHECKS)
    if not positive or answer.status_code == 200:
        return
    error = answer.json()["error"]
    if path == "/v1/messages":  # its errors name the field in their text alone
        error = {"param": error["message"].partition(" ")[0].rstrip(":"), "code": error.get("details", {}).get("error_code")}
    assert may_be_refused(path, error), (case.body, answer.text)


def ask_all(server, examples):
    document = json.loads(server.get("/openapi.json")[1])
    operations = [found.ok() for found in schemathesis.openapi.from_dict(document).get_all_operations()]
    assert len(operations) >= 10
    for operation in operations:
        modes = [GenerationMode.POSITIVE]
        if operation.body:
            modes.append(GenerationMode.NEGATIVE)
        for mode in modes:
            @settings(max_examples=examples if operation.body else 2, deadline=None, suppress_health_check=list(HealthCheck),
                      phases=[Phase.generate], derandomize=True, database=None)
            @given(case=operation.as_strategy(generation_mode=mode))
            def every_case(case):
                ask(case, server)

            every_case()


@pytest.mark.long
def test_answers_are_as_described(server):
    ask_all(server, 5)


@pytest.mark.extended
def test_answers_are_as_described_to_many_more(server):
    ask_all(server, 1500)
