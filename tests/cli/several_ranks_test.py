"""Ranks of a CPU as a user asks for them: the same answers, a plan that says who has what, and refusals that say what works."""
import json

import pytest

from nibble_program import ROOT, generate, run

QWEN = ROOT / "tests/data/parity/qwen3_moe_bf16"
CPU = ("--device", "cpu")
SPLITS = [("--tp", 2), ("--tp", 4), ("--tp", 8), ("--ep", 2), ("--ep", 4), ("--tp", 4, "--ep", 4, "--moe-a2a-backend", "none"),
          ("--ep", 2, "--moe-a2a-backend", "deepep"), ("--ep", 4, "--moe-a2a-backend", "deepep_low_latency"),
          ("--ep", 2, "--dp-attention"), ("--dp", 4), ("--tp", 2, "--dp-size", 2, "--enable-dp-attention", "--moe-a2a-backend", "low_latency"),
          ("--tp", 4, "--dp", 2), ("--ep", 4, "--dp", 2, "--moe-a2a-backend", "low_latency"),
          ("--tp-size", 4, "--dp-size", 2, "--ep-size", 4, "--enable-dp-attention", "--moe-a2a-backend", "deepep")]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """This machine in a file, for --as: measuring it takes seconds, which each plan for it would spend again."""
    code, out, err = run("plan", "--machine-json")
    assert code == 0, err
    file = tmp_path_factory.mktemp("machine") / "here.json"
    file.write_text(out)
    return ("--as", file)


def answer(*split):
    lines = generate("demo", *CPU, "--prompt", "One day the old clock", "--temperature", 0, "--max-tokens", 12, "--logprobs", 2,
                     *split)
    for line in lines:
        del line["timings"]
    return lines


@pytest.mark.long
def test_the_demo_answers_alike_over_any_ranks():
    alone = answer()
    for split in SPLITS:
        assert answer(*split) == alone, split


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_plan_says_which_part_each_rank_has(ranks, here):
    code, out, err = run("plan", QWEN, *here, *CPU, "--tp", ranks)
    assert code == 0, err
    assert [f"rank {rank} " in out for rank in range(ranks)] == [True] * ranks
    assert "memory, bytes on each rank" in out
    code, out, _ = run("plan", QWEN, *here, *CPU, "--ep", ranks, "--json")
    choices = {choice["field"]: choice["value"] for choice in json.loads(out)["choices"]}
    assert (choices["tp"], choices["ep"], choices["all_reduce"]) == (str(ranks), str(ranks), "gather")
    assert choices["token_exchange"] == "normal" and json.loads(out)["not_built"] == []


@pytest.mark.parametrize("options, says", [
    (["--tp", 3], "--tp 3: ranks are 1, 2, 4 or 8; give 1, 2, 4, 8"),
    (["--tp", 4, "--ep", 2], "a CPU's ranks have experts of their own all or none, and --tp is 4; give 1, 4"),
    (["--tp", 2, "--all-reduce", "nccl"], "it joins GPUs, and a CPU's ranks have links of their own; give gather"),
    (["--tp", 2, "--moe-a2a-backend", "normal"], "needs experts on several ranks, --ep 2 or more"),
    (["--tp", 2, "--dp", 4], "--dp 4: --tp counts all ranks, which are 2, and --dp divides them into groups of one size; give 1, 2"),
    (["--tp", 4, "--dp", 3], "; give 1, 2, 4"),
    (["--dp", 2, "--ep", 1], "--dp 2: ranks with sequences of their own need whole experts, --ep as many as all ranks; give 1"),
    (["--tp", 4, "--dp", 2, "--ep", 2], "a CPU's ranks have experts of their own all or none, and --tp is 4; give 1, 4"),
    (["--ep", 2, "--dp-attention", "--moe-a2a-backend", "none"], "ranks have rows of their own, and an exchange alone takes them to their "
                                                                 "experts; "),
    (["--tp", 4, "--dp", 2, "--all-reduce", "none"], "the ranks' parts must be summed; give gather"),
    (["--tensor-parallel-size", 2, "--data-parallel-size", 2, "--enable-expert-parallel"],
     "--tensor-parallel-size 2 --data-parallel-size 2 is --tp 4 --dp 2; give --ep N, as many as all ranks"),
    (["--ep", 2, "--moe-a2a-backend", "mooncake"], "it is for several hosts with RDMA"),
])
def test_what_does_not_run_is_refused_before_weights_load(options, says):
    code, out, err = run("generate", "demo", *CPU, "--prompt", "x", *options)
    assert (code, out) == (2, "") and says in err


def test_the_plan_says_who_gets_a_sequence(here):
    code, out, err = run("plan", QWEN, *here, *CPU, "--ep", 2, "--dp-attention")
    assert code == 0, err
    assert "owners " in out and "a sequence goes to the owner that has most of its prompt" in out
    code, out, _ = run("plan", QWEN, *here, *CPU, "--ep", 2, "--dp-attention", "--json")
    plan = json.loads(out)
    choices = {choice["field"]: choice["value"] for choice in plan["choices"]}
    assert (choices["tp"], choices["ep"], choices["dp"]) == ("2", "2", "2")
    assert (choices["token_exchange"], choices["all_reduce"]) == ("normal", "none") and plan["not_built"] == []


def test_the_plan_says_which_part_each_rank_of_a_group_has(here):
    code, out, err = run("plan", QWEN, *here, *CPU, "--tp", 4, "--dp", 2)
    assert code == 0, err
    for rank in range(4):
        part = out[out.index(f"rank {rank} "):].partition(f"rank {rank + 1} ")[0]
        assert "heads " in part and "experts " in part and f"of the sequences of group {rank // 2}, " in " ".join(part.split())
    code, out, _ = run("plan", QWEN, *here, *CPU, "--tp", 4, "--dp", 2, "--json")
    plan = json.loads(out)
    choices = {choice["field"]: choice["value"] for choice in plan["choices"]}
    assert (choices["tp"], choices["ep"], choices["dp"]) == ("4", "4", "2")
    assert (choices["token_exchange"], choices["all_reduce"]) == ("normal", "gather") and plan["not_built"] == []


@pytest.mark.parametrize("options", [("--ep", 2, "--dp-attention"), ("--tp", 4, "--dp", 2)])
def test_the_matrix_knows_that_ranks_with_sequences_of_their_own_exchange(options):
    code, out, err = run("plan", "demo", *CPU, *options, "--matrix", "--json")
    assert code == 0, err
    here = [pair for pair in json.loads(out)["pairs"] if pair["verdict"] == "runs here" and pair["moe_runner"].startswith("cpu")]
    assert {pair["token_exchange"] for pair in here} >= {"normal", "low_latency"}
    assert "none" not in {pair["token_exchange"] for pair in here}


def test_every_pair_of_the_matrix_is_judged_for_these_ranks():
    code, out, err = run("plan", "demo", *CPU, "--ep", 2, "--matrix", "--json")
    assert code == 0, err
    here = [pair for pair in json.loads(out)["pairs"] if pair["verdict"] == "runs here"]
    assert {"none", "normal", "low_latency"} <= {pair["token_exchange"] for pair in here}
    assert not [pair for pair in json.loads(out)["pairs"] if pair["verdict"] == "not built" and pair["moe_runner"].startswith("cpu")]
