"""schemathesis reads /openapi.json and asks what nobody here thought of: no 5xx, and answers as they are described."""
import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (content_type_conformance, negative_data_rejection, response_schema_conformance,
                                               status_code_conformance)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance, negative_data_rejection]


def ask(case, server):
    body = case.body
    if case.meta.generation.mode.is_positive and isinstance(body, dict) and case.operation.path.startswith("/v1/"):
        body["max_tokens"] = body["max_completion_tokens"] = 2  # answers without an end would be long ones
        body.pop("min_tokens", None)
        if not isinstance(body.get("n"), int) or body["n"] > 4:
            body.pop("n", None)
            body.pop("best_of", None)
    answer = case.call(base_url=server.url, timeout=60)
    case.validate_response(answer, checks=CHECKS)


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


def test_answers_are_as_described(server):
    ask_all(server, 10)


@pytest.mark.extended
def test_answers_are_as_described_to_many_more(server):
    ask_all(server, 1500)
