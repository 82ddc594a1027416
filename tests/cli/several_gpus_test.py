"""GPUs that share a model as a user asks for them, on the emulation of two: one GPU's answers, a plan that says who has what, and
refusals that say what works."""
import functools
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

from nibble_program import BINARY, PARITY
from processes import BY_NCCL, ends_of, free_address, places

EMULATED = BINARY.with_name("nibble_emulated")
pytestmark = pytest.mark.skipif(not EMULATED.exists(), reason="the emulation of a GPU is not built with sanitizers")
LIMITS = ("--max-model-len", 256, "--max-num-seqs", 2, "--max-num-batched-tokens", 64, "--kv-cache-tokens", 1024)


ASKED = ("--prompt-ids", "3,77,120,9,45,200", "--temperature", 0.7, "--seed", 3, "--ignore-eos", "--max-tokens", 4, "--logprobs", 2, "--json")


def command_of(command, *options, model="example"):
    return [str(part) for part in (EMULATED, command, PARITY / model, "--device", "cuda", *options)]


def run(command, *options, gpus=2, model="example"):
    done = subprocess.run(command_of(command, *options, model=model), capture_output=True, text=True, timeout=280,
                          env=os.environ | {"EMULATED_GPUS": str(gpus)})
    return done.returncode, done.stdout, done.stderr


def start(*options, gpus=2, model="example", before=(), **environment):
    """One of several processes."""
    return subprocess.Popen([*before, *command_of("generate", *LIMITS, *options, model=model)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, errors="replace", env=os.environ | {"EMULATED_GPUS": str(gpus)} | environment)


def answer_in(out):
    return {key: json.loads(out)[key] for key in ("token_ids", "logprobs", "top_logprobs")}


@functools.cache
def answer_alone(model="example"):
    """One GPU's."""
    code, out, err = run("generate", *LIMITS, *ASKED, "--enforce-eager", gpus=1, model=model)
    assert code == 0, err
    return answer_in(out)


@pytest.mark.some(2)
@pytest.mark.parametrize("split", [("--tp", 2), ("--dp", 2), ("--tp", 2, *BY_NCCL)])
def test_two_gpus_answer_as_one_does(split):
    code, out, err = run("generate", *LIMITS, *ASKED, "--enforce-eager", *split)
    assert code == 0, err
    assert answer_in(out) == answer_alone()


@pytest.mark.parametrize("model, ranks, options", [
    ("example", 2, ("--enforce-eager",)), ("example", 2, ("--max-num-seqs", 1)), ("qwen3_moe_bf16", 4, ("--enforce-eager",)),
])
@pytest.mark.long
def test_gpus_in_two_processes_answer_as_one_does(model, ranks, options):
    ends = ends_of([start(*ASKED, "--tp", ranks, *options, *place, gpus=ranks, model=model) for place in places(2, free_address())], timeout=280)
    assert [(code, out == "") for code, out, _ in ends] == [(0, False), (0, True)], ends
    assert answer_in(ends[0][1]) == answer_alone(model)


@pytest.mark.long
def test_prompts_in_chunks_sequences_in_company_and_drafts_too():
    prompts = [word for length in (5, 90, 9) for word in ("--prompt-ids", ",".join(str(3 + i % 7 * 11) for i in range(length)))]
    asked = (*prompts, "--temperature", 0, "--ignore-eos", "--max-tokens", 5, "--json", "--enforce-eager", "--speculative-algorithm", "ngram",
             "--speculative-num-draft-tokens", 2)

    def answers_of(ends):
        assert [code for code, _, _ in ends] == [0] * len(ends), ends
        return [(line["token_ids"], line["logprobs"]) for line in map(json.loads, ends[0][1].splitlines())]

    several = answers_of(ends_of([start(*asked, "--tp", 2, *place) for place in places(2, free_address())], timeout=280))
    assert several == answers_of(ends_of([start(*asked, gpus=1)], timeout=280)) and len(several) == 3


@pytest.mark.parametrize("ranks, model, gather", [(2, "example", ()), pytest.param(4, "qwen3_moe_bf16", BY_NCCL, marks=pytest.mark.long)])
def test_mpirun_starts_processes_with_gpus(ranks, model, gather):
    if not shutil.which("mpirun"):
        pytest.skip("mpirun is not installed; tools/packages.txt has it in the group optional")
    mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2")
    asked = (*ASKED, "--tp", ranks, *gather, "--enforce-eager", "--dist-init-addr", free_address())
    (code, out, err), = ends_of([start(*asked, before=mpirun, gpus=ranks, model=model)], timeout=280)
    assert code == 0, err
    assert answer_in(out) == answer_alone(model)


@pytest.mark.long
def test_processes_that_see_no_gpus_but_their_own_take_those():
    ends = ends_of([start(*ASKED, "--tp", 2, "--enforce-eager", *place, gpus=1, EMULATED_FIRST_GPU=str(index))
                    for index, place in enumerate(places(2, free_address()))], timeout=280)
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert answer_in(ends[0][1]) == answer_alone()


def test_processes_do_not_take_the_same_gpu():
    for code, out, err in ends_of([start(*ASKED, "--tp", 2, *place, gpus=1) for place in places(2, free_address())]):
        assert (code, out) == (2, "") and "process 1 takes GPU 0000:00:00, and so does process 0" in err, err


@pytest.fixture
def on_another_host(tmp_path):
    """A host is known by the name of its start. What begins with this is shown another."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("another name of the host needs root and unshare")
    other = tmp_path / "boot_id"
    other.write_text("00000000-0000-0000-0000-000000000000\n")
    shown = ("unshare", "--mount", "sh", "-c", f'mount --bind {other} /proc/sys/kernel/random/boot_id && exec "$@"', "sh")
    if subprocess.run([*shown, "true"], capture_output=True).returncode != 0:
        pytest.skip("no file can be put over /proc here")
    return shown


def test_nccl_joins_gpus_of_two_hosts(on_another_host):
    """Each has a GPU 0 of its own."""
    first, second = places(2, free_address())
    asked = (*ASKED, "--tp", 2, *BY_NCCL)
    ends = ends_of([start(*asked, *first, gpus=1), start(*asked, *second, gpus=1, before=on_another_host)], timeout=280)
    assert [(code, out == "") for code, out, _ in ends] == [(0, False), (0, True)], ends
    assert answer_in(ends[0][1]) == answer_alone()


def test_nccl_that_is_missing_is_named():
    code, out, err = run("generate", *ASKED, "--tp", 2, "--all-reduce", "nccl")
    if code == 0:
        pytest.skip("NCCL is installed here")
    assert (code, out) == (2, "") and "--all-reduce nccl: nccl" in err and "install NCCL" in err, err


def test_processes_of_two_hosts_are_refused(on_another_host):
    first, second = places(2, free_address())
    for code, out, err in ends_of([start(*ASKED, "--tp", 2, *first), start(*ASKED, "--tp", 2, *second, before=on_another_host)]):
        assert (code, out) == (2, "") and "process 1 is on another host than process 0, whose GPUs cannot write its GPUs' memory; --all-reduce nccl joins" in err, err


@pytest.mark.long
@pytest.mark.parametrize("gather", [(), BY_NCCL])
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_killed_or_stopped_is_named(fault, gather):
    first, second = places(2, free_address())
    asked = ("--prompt-ids", "3,77,120,9", "--ignore-eos", "--max-tokens", 200, "--tp", 2, "--enforce-eager", *gather)
    processes = [start(*asked, *place, EMULATED_NCCL_DEADLINE_MS="3000") for place in (first, second)]
    try:
        assert os.read(processes[0].stdout.fileno(), 1)  # an answer has begun
        processes[1].send_signal(fault)
        begin = time.monotonic()
        _, err = processes[0].communicate(timeout=60)
        assert processes[0].returncode == 1 and ("rank 1" in err or gather and "another rank did not come" in err), err
        assert time.monotonic() - begin < 30
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.long
def test_the_first_process_ends_the_others():
    first, second = places(2, free_address())
    asked = ("--prompt-ids", "3,77,120,9", "--ignore-eos", "--max-tokens", 200, "--tp", 2, "--enforce-eager")
    processes = [start(*asked, *place) for place in (first, second)]
    try:
        assert os.read(processes[0].stdout.fileno(), 1)
        processes[0].kill()
        _, err = processes[1].communicate(timeout=60)
        assert processes[1].returncode == 1 and ("another process was lost" in err or "rank 0" in err), err
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_the_plan_says_which_gpus_a_process_takes():
    code, out, err = run("plan", "--tp", 4, "--nnodes", 2, "--node-rank", 1, "--json", gpus=4, model="qwen3_moe_bf16")
    assert code == 0, err
    gpus = next(choice for choice in json.loads(out)["choices"] if choice["field"] == "gpus")
    assert (gpus["value"], gpus["why"]) == ("2-3", "those of process 1, which sees the GPUs of all")


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
    (["--tp", 2, "--dp", 2, "--nnodes", 2, "--dist-init-addr", "127.0.0.1:5000"], "GPUs with sequences of their own are one process's"),
    (["--tp", 8, "--nnodes", 2, "--dist-init-addr", "127.0.0.1:5000"], "there are 2 GPUs for each of 2 processes"),
    (["--tp", 2, "--all-reduce", "fused"], "ranks have whole sums and gather them; give gather"),
    (["--tp", 2, "--dp", 2, "--all-reduce", "nccl"], "each rank has its sequences' sums whole; give none"),
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
