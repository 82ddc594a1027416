"""GPUs that share a model as a user asks for them, on the emulation of two: one GPU's answers, a plan that says who has what, and
refusals that say what works."""
import json
import os
import subprocess

import pytest

from nibble_program import BINARY, PARITY

EMULATED = BINARY.with_name("nibble_emulated")
pytestmark = pytest.mark.skipif(not EMULATED.exists(), reason="the emulation of a GPU is not built with sanitizers")
LIMITS = ("--max-model-len", 256, "--max-num-seqs", 2, "--max-num-batched-tokens", 64, "--kv-cache-tokens", 1024)


def run(command, *options, gpus=2, model="example"):
    done = subprocess.run([EMULATED, command, PARITY / model, "--device", "cuda", *map(str, options)], capture_output=True, text=True,
                          timeout=280, env=os.environ | {"EMULATED_GPUS": str(gpus)})
    return done.returncode, done.stdout, done.stderr


def test_two_gpus_answer_as_one_does():
    def answer(*split):
        code, out, err = run("generate", *LIMITS, "--prompt-ids", "3,77,120,9,45,200", "--temperature", 0.7, "--seed", 3, "--ignore-eos",
                             "--max-tokens", 4, "--logprobs", 2, "--json", "--enforce-eager", *split)
        assert code == 0, err
        return {key: json.loads(out)[key] for key in ("token_ids", "logprobs", "top_logprobs")}

    one = answer()
    assert answer("--tp", 2) == one
    assert answer("--dp", 2) == one


def test_the_plan_says_what_each_gpu_has():
    code, out, err = run("plan", "--tp", 2)
    assert code == 0, err
    assert "rank 0 " in out and "rank 1 " in out and "memory, bytes on each rank" in out
    code, out, _ = run("plan", "--ep", 2, "--json")
    plan = json.loads(out)
    choices = {choice["field"]: choice["value"] for choice in plan["choices"]}
    assert (choices["tp"], choices["ep"], choices["token_exchange"], choices["all_reduce"]) == ("2", "2", "none", "gather")
    assert choices["expert_copies"] == "one a GPU" and plan["not_built"] == []


def test_gpus_may_have_sequences_of_their_own_or_all_of_them():
    code, out, err = run("plan", "--ep", 2, "--dp-attention", "--json")
    assert code == 0, err
    plan = json.loads(out)
    choices = {choice["field"]: choice["value"] for choice in plan["choices"]}
    assert (choices["tp"], choices["dp"], choices["token_exchange"], choices["all_reduce"]) == ("2", "2", "low_latency", "none")
    assert plan["not_built"] == []
    code, out, err = run("plan", "--tp", 4, "--dp", 2, gpus=4, model="qwen3_moe_bf16")
    assert code == 0 and "of the sequences of group 1, " in out, err
    # Heads that two ranks could not share are whole on each.
    code, out, err = run("plan", "--dp", 2, gpus=2, model="qwen3_next_bf16")
    assert code == 0, err


def test_one_gpu_has_no_copies_to_choose():
    code, out, _ = run("plan", gpus=1)
    assert code == 0 and "expert_copies" not in out and "rank 0" not in out


@pytest.mark.parametrize("options, says", [
    (["--tp", 4], "there are 2 GPUs"),
    (["--tp", 2, "--ep", 1], "have whole experts each"),
    (["--tp", 2, "--moe-a2a-backend", "deepep"], "rows travel where GPUs have sequences of their own (--dp)"),
    (["--tp", 2, "--all-reduce", "fused"], "ranks have whole sums and gather them; give gather"),
])
def test_what_does_not_run_is_refused_before_weights_load(options, says):
    code, out, err = run("generate", "--prompt", "x", *options)
    assert (code, out) == (2, "") and says in err, err


def test_a_family_with_latents_is_divided_by_heads():
    code, out, err = run("plan", "--tp", 2, gpus=2, model="deepseek_v3_bf16")
    assert code == 0, err
    ranks = [line for line in out.splitlines() if line.startswith("rank ")]
    assert len(ranks) == 2 and all("heads" in rank and "of dense layers columns" in rank for rank in ranks), out
    assert not [line for line in out.splitlines() if line.startswith("not built")], out


def test_heads_that_do_not_divide_are_named():
    code, out, err = run("generate", "--prompt", "x", "--tp", 2, gpus=2, model="qwen3_next_bf16")
    assert (code, out) == (2, "") and "heads of keys of layers with a state do not divide among 2 ranks" in err, err
