"""nibble bench as scripts read it."""
import json

import pytest

from nibble_program import PARITY, run

EXAMPLE = PARITY / "example"


def bench(*arguments):
    code, out, err = run("bench", EXAMPLE, "--json", *arguments)
    assert code == 0, err
    return json.loads(out)


def test_json_names_the_bounds_the_choices_and_a_run_for_each_level():
    report = bench("--input-len", 20, "--output-len", 6, "--concurrency", "1,3")
    for name in ("read_bandwidth", "peak_flops", "load_s", "first_token_s", "peak_memory", "bytes_per_token", "multiplies_per_token"):
        assert report[name] > 0, name
    assert report["load_s"] < report["first_token_s"]
    choices = {choice["field"]: choice for choice in report["choices"]}
    assert {"moe_runner", "attention", "dtype", "kv_cache_dtype", "threads", "pinning", "quantization", "mapped_at_load"} <= set(choices)
    assert choices["dtype"]["value"] == "bfloat16" and choices["dtype"]["from"] == "default" and choices["dtype"]["why"]
    assert [run["concurrency"] for run in report["runs"]] == [1, 3]
    for level in report["runs"]:
        assert level["prefill_tokens_per_s"] > 0 and level["decode_tokens_per_s"] > 0
        assert 0 < level["multiply_share"] < 1 and level["bandwidth_share"] > 0
        assert level["tokens_a_decode_step"] == level["concurrency"]
        assert level["decode_steps"] >= 5 and 0 <= level["clean_decode_steps"] <= level["decode_steps"]
        assert set(level["ttft_s"]) == set(level["itl_s"]) == {"p50", "p90", "p99"}
        assert "decode_profile" not in level


def test_a_token_reads_what_inspect_counts():
    """A tied lm_head too."""
    code, out, err = run("bench", "demo", "--json", "--input-len", 4, "--output-len", 2, "--concurrency", 1)
    assert code == 0, err
    active = json.loads(run("inspect", "demo", "--json")[1])["active_bytes_per_token"]
    assert 0 <= active - json.loads(out)["bytes_per_token"] <= 4096, "the embedding's row is left out"


def test_a_profile_names_the_ops_of_both_kinds_of_step():
    [level] = bench("--input-len", 20, "--output-len", 6, "--concurrency", 1, "--profile")["runs"]
    for kind in ("prefill_profile", "decode_profile"):
        ops = {row["op"]: row["seconds"] for row in level[kind]}
        assert {"embedding", "norm", "q, k, v", "attention", "attention output", "router", "experts", "lm_head", "sampling"} == set(ops)
        assert all(seconds > 0 for seconds in ops.values())


@pytest.mark.long
def test_a_users_choice_is_told_from_a_default():
    report = bench("--input-len", 8, "--output-len", 2, "--concurrency", 1, "--dtype", "float32", "--moe-runner", "cpu_scalar", "--threads", 1)
    choices = {choice["field"]: (choice["value"], choice["from"]) for choice in report["choices"]}
    assert choices["dtype"] == ("float32", "user")
    assert choices["kv_cache_dtype"] == ("float32", "default")
    assert choices["moe_runner"] == ("cpu_scalar", "user")
    assert choices["threads"] == ("1", "user") and report["threads"] == 1
    assert "BF16" not in report["peak_instruction"]


def test_depth_comes_before_the_measured_tokens():
    report = bench("--depth", 70, "--input-len", 20, "--output-len", 4, "--concurrency", 2, "--max-num-batched-tokens", 32)
    assert report["depth"] == 70
    [level] = report["runs"]
    assert level["prefill_steps"] == 1, "of three chunks of the first prompt the last has measured tokens"
    assert level["tokens_a_decode_step"] == 2


def test_what_does_not_fit_is_refused():
    code, out, err = run("bench", EXAMPLE, "--depth", 131000, "--input-len", 100, "--output-len", 10, "--max-model-len", 200)
    assert (code, out) == (2, "") and err.startswith("error: --depth 131000, --input-len 100")
    code, _, err = run("bench", EXAMPLE, "--moe-runner", "cpu_none")
    assert code == 2 and "cpu_scalar" in err


def test_weights_out_of_a_seed_are_for_a_gpu():
    code, out, err = run("bench", EXAMPLE, "--device", "cpu", "--random-weights", "1")
    assert (code, out) == (2, "")
    assert "--random-weights are made on a GPU" in err and "runs on a CPU" in err


def test_the_table_is_for_people():
    code, out, _ = run("bench", EXAMPLE, "--input-len", 8, "--output-len", 2, "--concurrency", 1, "--profile")
    assert code == 0 and "(measured now)" in out and "moe_runner" in out and "experts" in out
