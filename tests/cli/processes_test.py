"""Ranks of a CPU in several processes, started by hand, by mpirun and on two hosts: one process's answers, and refusals that all of them
are told."""
import json
import os
import shutil
import subprocess

import pytest

from nibble_program import BINARY, ROOT, environment, generate
from processes import ends_of, free_address, places, start

CPU = ("--device", "cpu", "--threads", 2)
QUESTION = ("--prompt-ids", "5,17,3,250,9,41,8,77,12,30", "--temperature", 0.8, "--seed", 3, "--max-tokens", 10, "--logprobs", 2, "--ignore-eos")
MODELS = {"demo": "demo"} | {name: ROOT / "tests/data/parity" / name for name in ("qwen3_moe_bf16", "deepseek_v3_bf16", "qwen3_next_bf16")}
SPLITS = [(2, "--tp", 2), (2, "--tp", 4), (4, "--tp", 4), (2, "--ep", 4), (2, "--ep", 2, "--moe-a2a-backend", "low_latency")]


def without_times(lines):
    return [{name: value for name, value in line.items() if name != "timings"} for line in lines]


def answer_of(ends):
    """What the first printed; the others print nothing."""
    for code, out, err in ends:
        assert code == 0, err
    assert [out for _, out, _ in ends[1:]] == [""] * (len(ends) - 1)
    return without_times(map(json.loads, ends[0][1].splitlines()))


def answer(model, count, *split):
    return answer_of(ends_of([start("generate", model, *CPU, *QUESTION, "--json", *split, *place) for place in places(count, free_address())]))


@pytest.mark.some(1)
@pytest.mark.parametrize("name, splits", [("demo", SPLITS), *((name, SPLITS[:1] + SPLITS[3:4]) for name in MODELS if name != "demo")])
def test_several_processes_give_the_bits_of_one(name, splits):
    alone = without_times(generate(MODELS[name], *CPU, *QUESTION))
    for split in splits:
        assert answer(MODELS[name], *split) == alone, split


@pytest.mark.parametrize("count, split", [
    (2, ("--tp", 2)), (2, ("--dp", 2)), (2, ("--tp", 4, "--dp", 2)), (4, ("--tp", 4, "--dp", 2)), (4, ("--dp", 4, "--moe-a2a-backend", "low_latency")),
])
@pytest.mark.some(1)
def test_a_long_prompt_in_chunks_and_many_sequences_too(count, split):
    """With --dp: whose sequences lie in groups of ranks within processes and across them."""
    prompts = [word for i in range(6) for word in ("--prompt-ids", ",".join(str(1 + (7 * i + j) % 200) for j in range(5 + 40 * i)))]
    asked = ("generate", "demo", *CPU, *prompts, "--max-tokens", 8, "--temperature", 0, "--max-num-batched-tokens", 64, "--json")
    several = answer_of(ends_of([start(*asked, *split, *place) for place in places(count, free_address())]))
    assert several == answer_of(ends_of([start(*asked)]))
    assert len(several) == 6


def test_prompts_are_rounded_to_fp8_in_each():
    asked = ("generate", ROOT / "tests/data/parity/qwen3_moe_fp8", *CPU, "--dtype", "fp8", "--prompt-ids", ",".join(str(3 + 5 * i) for i in range(40)), "--max-tokens", 6,
             "--ignore-eos", "--json")
    several = answer_of(ends_of([start(*asked, "--tp", 2, *place) for place in places(2, free_address())]))
    assert several == answer_of(ends_of([start(*asked)]))


def test_mpirun_starts_them():
    if not shutil.which("mpirun"):
        pytest.skip("mpirun is not installed; tools/packages.txt has it in the group optional")
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", 2, BINARY, "generate", "demo", *CPU, *QUESTION,
               "--json", "--tp", 2, "--dist-init-addr", free_address()]
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, env=environment())
    assert done.returncode == 0, done.stderr
    assert without_times(map(json.loads, done.stdout.splitlines())) == without_times(generate("demo", *CPU, *QUESTION))


def test_two_hosts_meet_over_a_network(tmp_path):
    """Two network namespaces with a wire between them."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    names = [f"nibble{os.getpid()}{side}" for side in "ab"]
    key = tmp_path / "key"
    key.write_text(os.urandom(16).hex())

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, text=True)

    try:
        for name in names:
            if (made := ip("netns", "add", name)).returncode != 0:
                pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
        wire = ip("link", "add", "wire", "netns", names[0], "type", "veth", "peer", "name", "wire", "netns", names[1])
        if wire.returncode != 0:
            pytest.skip(f"no wire between namespaces can be made here: {wire.stderr.strip()}")
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.99.0.{number}/24", "dev", "wire")
            for device in ("lo", "wire"):
                ip("-n", name, "link", "set", device, "up")

        def on_hosts(*more):
            asked = ("generate", "demo", *CPU, *QUESTION, "--json", "--tp", 2, *more)
            return [subprocess.Popen([str(part) for part in ("ip", "netns", "exec", name, BINARY, *asked, *place)], stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
                    for name, place in zip(names, places(2, "10.99.0.1:5000"))]

        assert answer_of(ends_of(on_hosts("--dist-key-file", key))) == without_times(generate("demo", *CPU, *QUESTION))
        for code, out, err in ends_of(on_hosts()):  # whom others reach needs a key
            assert (code, out) == (2, "") and "--dist-key-file" in err
    finally:
        for name in names:
            ip("netns", "delete", name)


@pytest.mark.parametrize("options, others, says", [
    (["--tp", 2], ["--tp", 2, "--dtype", "float32", "--kv-cache-dtype", "float32"], "process 1 has "),
    (["--tp", 2], ["--tp", 2, "--max-num-seqs", 3], "process 1 has max_num_seqs 3, and process 0 has 16"),
    (["--tp", 2], ["--tp", 4], "process 1 has tp 4, and process 0 has 2"),
    (["--ep", 4, "--dp", 2], ["--ep", 4, "--dp", 4], "process 1 has dp 4, and process 0 has 2"),
])
def test_processes_that_differ_are_told_in_what(options, others, says):
    asked = ("generate", "demo", *CPU, "--dtype", "bfloat16", "--prompt", "x")
    first, second = places(2, free_address())
    for code, out, err in ends_of([start(*asked, *options, *first), start(*asked, *others, *second)]):
        assert (code, out) == (2, "") and says in err, err


def test_another_model_is_told_too():
    first, second = places(2, free_address())
    ends = ends_of([start("generate", model, *CPU, "--dtype", "float32", "--prompt-ids", 1, "--tp", 2, *place)
                    for model, place in ((MODELS["qwen3_moe_bf16"], first), (MODELS["deepseek_v3_bf16"], second))])
    for code, out, err in ends:
        assert (code, out) == (2, "") and "process 1 has the checkpoint" in err, err


@pytest.mark.parametrize("options, says", [
    (["--nnodes", 2], "2 processes need a place to meet; give all the same --dist-init-addr HOST:PORT"),
    (["--nnodes", 2, "--node-rank", 2, "--dist-init-addr", "127.0.0.1:5000", "--tp", 2], "--node-rank 2 is none of 2 processes"),
    (["--node-rank", 1], "--node-rank is for several processes; give --nnodes too"),
    (["--nnodes", 2, "--dist-init-addr", "127.0.0.1:5000", "--tp", 1], "--nnodes 2: processes share the ranks of --tp, which are 1 (--tp 2 would do)"),
    (["--nnodes", 3, "--dist-init-addr", "127.0.0.1:5000", "--tp", 4], "--nnodes 3: processes share the ranks of --tp, which are 4; give 1"),
    (["--nnodes", 4, "--dist-init-addr", "127.0.0.1:5000", "--dp", 2], "--nnodes 4: processes share the ranks of --tp, which are 2 (--tp 4 would do)"),
    (["--nnodes", 2, "--dist-init-addr", "127.0.0.1:5000", "--tp", 2, "--dp", 4], "--dp 4: --tp counts all ranks, which are 2, and --dp divides them into"),
    (["--nnodes", 2, "--dist-init-addr", "127.0.0.1", "--tp", 2], "is no address; give a host and a port"),
    (["--nnodes", 2, "--dist-init-addr", "10.99.0.1:5000", "--tp", 2], "give all the same --dist-key-file FILE"),
])
def test_what_cannot_be_is_refused_at_once(options, says):
    (code, out, err), = ends_of([start("generate", "demo", *CPU, "--prompt", "x", *options)], timeout=30)
    assert (code, out) == (2, "") and says in err, err
