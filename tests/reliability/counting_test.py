"""What is counted is what was answered."""
import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from watched_server import eventually, request_bytes, reset, serving

# Bucket bounds that dashboards expect, as vLLM documents them.
FIRST_TOKEN = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560]
TOKEN = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]
REQUEST = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]


def families(server):
    return {family.name: family for family in text_string_to_metric_families(server.ask("GET", "/metrics").body.decode())}


def bounds(family):
    return [float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")]


def test_names_labels_and_buckets_are_those_that_dashboards_read(server):
    found = families(server)
    for name, kind in {
        "vllm:num_requests_running": "gauge", "vllm:num_requests_waiting": "gauge", "vllm:kv_cache_usage_perc": "gauge",
        "vllm:num_preemptions": "counter", "vllm:prompt_tokens": "counter", "vllm:generation_tokens": "counter",
        "vllm:request_success": "counter", "vllm:prefix_cache_queries": "counter", "vllm:prefix_cache_hits": "counter",
        "vllm:iteration_tokens_total": "histogram", "vllm:request_prompt_tokens": "histogram", "vllm:request_generation_tokens": "histogram",
        "vllm:request_params_n": "histogram", "vllm:request_params_max_tokens": "histogram",
        "nibble:steps": "counter", "nibble:step_seconds": "counter", "nibble:kv_pages": "gauge", "nibble:kv_pages_used": "gauge",
        "nibble:kv_pages_cached": "gauge", "nibble:evicted_pages": "counter", "nibble_plan_info": "gauge",
        "vllm:cache_config_info": "gauge",
    }.items():
        assert found[name].type == kind, name
        assert all(sample.labels["model_name"] == "demo" and sample.labels["engine"] == "0" for sample in found[name].samples), name
    for names, expected in ((["time_to_first_token"], FIRST_TOKEN), (["inter_token_latency", "time_per_output_token"], TOKEN),
                            (["e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time", "request_inference_time"], REQUEST)):
        for name in names:
            assert bounds(found[f"vllm:{name}_seconds"]) == expected + [float("inf")], name
    assert bounds(found["vllm:request_params_n"]) == [1, 2, 5, 10, 20, float("inf")]
    assert bounds(found["vllm:request_prompt_tokens"]) == [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, float("inf")]
    choices = {sample.labels["field"]: sample.labels["value"] for sample in found["nibble_plan_info"].samples}
    assert choices["moe_runner"] and choices["attention"]


def test_counters_equal_the_usage_that_was_answered_and_refusals_count_nothing():
    with serving() as server:
        before = server.metrics()
        usages = []
        for body in (
            {"prompt": "Once upon a time", "max_tokens": 7},
            {"prompt": ["Once", "upon a time there"], "n": 3, "max_tokens": 5, "ignore_eos": True},
            {"prompt": [1, 2, 3], "max_tokens": 40, "stop": [" "]},
            {"prompt": "a", "max_tokens": 0, "echo": True, "logprobs": 1},
        ):
            usages.append(server.ask("POST", "/v1/completions", body).json()["usage"])
            events = server.ask("POST", "/v1/completions", body | {"stream": True, "stream_options": {"include_usage": True}}).events()
            assert events[-1] is None
            usages.append(events[-2]["usage"])
        for refused in ({"prompt": "a", "temperature": 9}, {"prompt": "word " * 5000}, {"prompt": "a", "model": "no"}, {"prompt": ""},
                        {"prompt": [10**9]}):
            assert server.ask("POST", "/v1/completions", refused).status in (400, 404)
        after = server.metrics()

        def grown(*key):
            return after[key] - before[key]

        assert grown("vllm:prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
        assert grown("vllm:generation_tokens_total") == sum(usage["completion_tokens"] for usage in usages)
        sequences = 2 * (1 + 6 + 1 + 1)
        ended = [grown("vllm:request_success_total", reason) for reason in ("stop", "length", "abort", "error")]
        assert sum(ended) == sequences and ended[2:] == [0, 0]
        for name in ("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prompt_tokens", "request_generation_tokens"):
            assert grown(f"vllm:{name}_count") == sequences, name
        for name in ("prefill", "decode", "inference"):
            assert grown(f"vllm:request_{name}_time_seconds_count") == sequences - 2, name  # two had no tokens
        parts = grown("vllm:request_prefill_time_seconds_sum") + grown("vllm:request_decode_time_seconds_sum")
        assert abs(parts - grown("vllm:request_inference_time_seconds_sum")) < 1e-6 * sequences
        assert grown("vllm:request_params_n_sum") == 2 * (1 + 3 + 1 + 1)
        assert grown("vllm:time_to_first_token_seconds_count") == sequences - 2  # two had none
        assert grown("vllm:iteration_tokens_total_count") == grown("nibble:steps_total")


def test_running_counts_sequences_and_rest_is_zero(server):
    with server.survives():
        before = server.aborts()
        connection = server.connect()
        connection.sendall(request_bytes("POST", "/v1/completions", {
            "prompt": "Once", "n": 3, "max_tokens": 1900, "ignore_eos": True, "stream": True}))
        connection.recv(1000)
        metrics = eventually(lambda: (lambda m: m["vllm:num_requests_running",] == 3 and m)(server.metrics()))
        assert 0 < metrics["vllm:kv_cache_usage_perc",] < 1 and metrics["nibble:kv_pages_used",] > 0
        reset(connection)
        eventually(lambda: server.aborts() == before + 3, what="three aborts")


@pytest.mark.extended  # it waits for them
def test_ten_seconds_with_work_are_one_line_in_the_log():
    with serving("--log-json") as server:
        def status_lines():
            return [line for line in map(json.loads, filter(lambda line: line[0] == "{", server.log().splitlines())) if line.get("message") == "engine"]

        server.control()
        [line] = eventually(status_lines, 20, "the line")
        assert line["generation_tokens_per_s"] > 0 and line["prompt_tokens_per_s"] > 0
        assert line["running"] == line["waiting"] == 0 and "kv_usage_percent" in line
