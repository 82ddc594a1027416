"""What serve does when one of several GPUs does not come to the others, or its engine is killed, where GPUs or groups of them have sequences
of their own: on the emulation of several, or on GPUs with the program that NIBBLE_ON_GPUS names. A rank's thread is stopped by ptrace, as in
rank_faults_test.py."""
import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from nibble_program import BINARY, PARITY
from rank_faults_test import StoppedThread, health, is_named, read_until, seconds, stream, thread_of
from watched_server import eventually, serving

ON_GPUS = os.environ.get("NIBBLE_ON_GPUS")
PROGRAM = Path(ON_GPUS).resolve() if ON_GPUS else BINARY.with_name("nibble_emulated")
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the emulation of a GPU is not built with sanitizers")
LENGTH = 4096  # of a stream, which a GPU takes seconds for
SMALL = ("--device", "cuda", "--max-num-seqs", 4, "--max-num-batched-tokens", 64, "--max-model-len", LENGTH, "--kv-cache-tokens", 4 * LENGTH,
         "--enforce-eager")
OWNERS = (2, "example", ("--dp", 2))
FOUR_OWNERS = (4, "qwen3_moe_bf16", ("--dp", 4))
GROUPS = (4, "qwen3_moe_bf16", ("--tp", 4, "--dp", 2))
PHASES = ("prefill", "decode", "idle")

asked = iter(range(1000))


@contextlib.contextmanager
def serving_on_gpus(gpus, model, options, **more):
    with serving(*SMALL, *options, model=PARITY / model, program=PROGRAM, EMULATED_GPUS=gpus, **more) as server:
        yield server


# Seconds that an emulated GPU's wait of two takes longer (ops/cuda/emulation/include/comm/ptx/peer.cuh).
WAIT = 0 if ON_GPUS else 6


def steps(server):
    """Seconds that a few take at present, on CPUs that others use as well: the emulation goes on to where a rank is missed, and through the
    rest of a step whose ranks have given up."""
    begin = time.monotonic()
    server.ask("POST", "/v1/completions", {"prompt": f"{next(asked)}", "max_tokens": 4, "temperature": 0, "ignore_eos": True})
    return time.monotonic() - begin


@contextlib.contextmanager
def streams_of(server, phase, count=2, max_tokens=LENGTH - 400):
    """So many are served, and what each has said so far; nobody is suspected of what became of another."""
    prompt = "goes on and on " * 25 if phase == "prefill" else "says"
    with contextlib.ExitStack() as open_streams:
        connections = [open_streams.enter_context(stream(server, f"Request {next(asked)} {prompt}", max_tokens)) for _ in range(count)]
        begun = [read_until(connection, b"data:", None) if phase == "decode" else b"" for connection in connections]
        if phase == "prefill":
            eventually(lambda: server.metrics()["vllm:num_requests_running",] == count, what="that all run")
        yield connections, begun


def all_are_told(server, streams, begin, slow, stopped=None):
    """Each by an error event within 5 s and what the emulation takes, and health says so a second later at the latest."""
    for connection, begun in zip(*streams):
        answer = begun + read_until(connection, b"engine_stopped", stopped)
        assert seconds(begin) < 5 + slow, server.log()
        assert b'"code":"engine_stopped' in answer, (answer, server.log())
    told = time.monotonic()
    while health(server) == 200:
        if stopped:
            stopped.reap()
        assert seconds(told) < 1, "health is told late"


def serves_again(server, engine, begin, slow, stopped=None):
    """Another process answers as the first did, within 15 s of the fault and what the emulation takes."""
    def replaced():
        if stopped:
            stopped.reap()
        return server.engine() not in (None, engine) and health(server) == 200
    eventually(replaced, 60, "another engine")
    assert seconds(begin) < 15 + slow, server.log()
    assert server.control() == server.before


def stop_a_rank(server, rank, phase):
    engine, slow, before = server.engine(), WAIT + steps(server), len(server.log())
    if phase == "idle":
        stopped, begin = StoppedThread(engine, *thread_of(rank)), time.monotonic()
    with streams_of(server, phase) as streams:
        if phase != "idle":
            stopped, begin = StoppedThread(engine, *thread_of(rank)), time.monotonic()
        all_are_told(server, streams, begin, slow, stopped)
        told = seconds(begin)
    serves_again(server, engine, begin, slow, stopped)
    print(f"rank {rank}, {phase}: told after {told:.1f} s, served again after {seconds(begin):.1f}, {slow:.1f} of them for the emulation")
    said = server.log()[before:]
    # Idle, nobody waits for the engine's own thread.
    assert is_named(said, rank) or (rank == 0 and phase == "idle" and "none of its threads does anything" in said), (phase, said)


def kill_the_engine(server, phase):
    """When that was; its streams are broken off."""
    with streams_of(server, phase, 0 if phase == "idle" else 2) as (connections, _):
        os.kill(server.engine(), signal.SIGKILL)
        begin = time.monotonic()
        for connection in connections:  # nobody is left who could say more
            assert b"[DONE]" not in read_until(connection, None, None)
            assert seconds(begin) < 5
    return begin


@pytest.mark.extended  # emulated ranks wait for each other on the CPUs that the other tests use
@pytest.mark.parametrize("gpus, rank, phases", [(OWNERS, 0, PHASES), (OWNERS, 1, PHASES), (FOUR_OWNERS, 2, ("decode",)),
                                                (GROUPS, 0, ("idle",)), (GROUPS, 1, ("decode",)), (GROUPS, 3, ("prefill",))])
def test_a_gpu_that_does_not_come_is_named_and_all_are_told(gpus, rank, phases):
    with serving_on_gpus(*gpus) as server:
        for phase in phases:
            stop_a_rank(server, rank, phase)


@pytest.mark.long
@pytest.mark.parametrize("gpus, phases", [(OWNERS, PHASES), pytest.param(GROUPS, ("decode",), marks=pytest.mark.extended)])
def test_a_killed_engine_is_replaced(gpus, phases):
    with serving_on_gpus(*gpus) as server:
        for phase in phases:
            engine, slow = server.engine(), steps(server)
            serves_again(server, engine, kill_the_engine(server, phase), slow)


@pytest.mark.extended
@pytest.mark.skipif(ON_GPUS, reason="only the emulation hangs when it is told to")
def test_a_gpu_that_hangs_is_named(tmp_path):
    order = tmp_path / "order"
    with serving_on_gpus(*OWNERS, EMULATED_GPU_FAULT=order) as server:
        engine, slow = server.engine(), WAIT + steps(server)
        with streams_of(server, "decode") as streams:
            (tmp_path / "written").write_text("hang 2\n")
            (tmp_path / "written").rename(order)
            eventually(lambda: not order.exists(), what="that somebody reads the order")
            begin = time.monotonic()
            all_are_told(server, streams, begin, slow)
        serves_again(server, engine, begin, slow)
        assert any(is_named(server.log(), rank) for rank in range(2)), server.log()
