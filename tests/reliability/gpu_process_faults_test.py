"""What two processes that share a model's GPUs do when one of them dies, is stopped or loses its parent: streams are told, both serve again
with the same bits, and an order to end leaves nothing behind. On the emulation of two GPUs, whose rooms are memory of both processes, or on
GPUs (gpu_rank_faults_test.py)."""
import contextlib
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from gpu_rank_faults_test import PHASES, PROGRAM, SMALL, WAIT, all_are_told, kill_the_engine, pytestmark, serves_again, steps, streams_of  # noqa: F401 - pytestmark is for pytest
from nibble_program import PARITY
from processes import BY_NCCL, free_address, places
from rank_faults_test import StoppedThread, health, read_until, seconds
from watched_server import Server, eventually

ON_TWO = {"model": PARITY / "example", "program": PROGRAM, "EMULATED_GPUS": 2, "EMULATED_NCCL_DEADLINE_MS": 2500}


def follower_of(address, gather):
    return Server(*SMALL, "--tp", 2, *gather, *places(2, address)[1], ready=False, **ON_TWO)


class Pair:
    """The first process, which answers, and the second; and all processes that these have had."""

    def __init__(self, gather):
        self.address, self.gather = free_address(), gather
        self.follower = follower_of(self.address, gather)
        try:
            self.first = Server(*SMALL, "--tp", 2, *gather, *places(2, self.address)[0], **ON_TWO)
        except BaseException:
            self.follower.process.kill()
            raise
        self.seen = set()
        self.note()

    def note(self):
        for server in (self.first, self.follower):
            self.seen |= {server.process.pid, *server.children()}

    def serves_again(self, engine, begin, slow, stopped=None):
        serves_again(self.first, engine, begin, slow, stopped)
        self.note()

    def end(self):
        begin = time.monotonic()
        self.follower.signal()
        assert self.first.stop() == 0
        assert self.follower.process.wait(timeout=60) == 0, self.follower.log()
        self.follower.stop()
        assert seconds(begin) < 15  # nothing runs, so there is nothing to wait for
        nothing_is_left(self)


def nothing_is_left(pair):
    assert [pid for pid in pair.seen if Path(f"/proc/{pid}").exists()] == []
    assert not [name for name in names_of_host() if name in pair.names]
    for port in (pair.first.port, int(pair.address.rsplit(":", 1)[1])):
        with socket.socket() as connection:
            assert connection.connect_ex(("127.0.0.1", port)) != 0, port


def names_of_host():
    """But for those of CPUs, which any server on this host may take."""
    return {name for name in re.findall(r"@(nibble-\S+)", Path("/proc/net/unix").read_text()) if not name.startswith("nibble-cpu-")}


@pytest.fixture(params=[pytest.param((), id="stores"), pytest.param(BY_NCCL, marks=pytest.mark.extended, id="nccl")])
def pair(request):
    before = names_of_host()
    pair = Pair(request.param)
    pair.names = names_of_host() - before
    try:
        yield pair
        pair.end()
    finally:
        for server in (pair.first, pair.follower):
            with contextlib.suppress(ProcessLookupError):
                server.process.kill()


def told_and_served_again(pair, fault, phase):
    """`fault` of the engines, the first process's and the other's."""
    server = pair.first
    engine, other, slow = server.engine(), pair.follower.engine(), steps(server)
    with streams_of(server, phase, 0 if phase == "idle" else 2) as streams:
        begin = time.monotonic()
        fault(engine, other)
        if phase == "idle":
            # Nobody asks anything, so nothing but the process itself can find out.
            eventually(lambda: health(server) != 200, 5, "news of it")
        all_are_told(server, streams, begin, slow)
        told = seconds(begin)
    pair.serves_again(engine, begin, slow)
    print(f"{phase}: told after {told:.1f} s, served again after {seconds(begin):.1f}, {slow:.1f} of them for the emulation")
    assert pair.follower.engine() != other


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.extended)])
def test_when_the_second_dies_or_is_stopped_both_come_back(pair, number):
    for phase in PHASES:
        before = len(pair.first.log())
        told_and_served_again(pair, lambda _, other: os.kill(other, number), phase)
        assert any(words in pair.first.log()[before:] for words in ("for rank 1, which did not come", "the process of rank 1 has gone", "another rank did not come", "one of them does not come"))


@pytest.mark.extended  # emulated ranks wait for each other on the CPUs that the other tests use
def test_when_the_first_is_stopped_both_come_back(pair):
    for phase in ("prefill", "decode"):
        told_and_served_again(pair, lambda engine, _: os.kill(engine, signal.SIGSTOP), phase)


@pytest.mark.extended
def test_when_the_first_dies_both_come_back(pair):
    server = pair.first
    for phase in PHASES:
        engine, other, slow = server.engine(), pair.follower.engine(), steps(server)
        begin = kill_the_engine(server, phase)
        pair.serves_again(engine, begin, slow)
        print(f"{phase}: served again after {seconds(begin):.1f} s, {slow:.1f} of them for the emulation")
        assert pair.follower.engine() != other


@pytest.mark.extended
@pytest.mark.parametrize("phase", ["decode", "idle"])
def test_when_a_gpu_of_the_second_does_not_come_both_come_back(pair, phase):
    """Its process may not end by itself: in a step a thread of it waits for the GPU, and idle it is stopped where it waits for a step."""
    server, other, slow = pair.first, pair.follower.engine(), WAIT + steps(pair.first)
    engine = server.engine()
    with contextlib.ExitStack() as opened:
        stopped = StoppedThread(other, "nibble-engine") if phase == "idle" else None
        streams = opened.enter_context(streams_of(server, phase))
        stopped, begin = stopped or StoppedThread(other, "nibble-engine"), time.monotonic()
        all_are_told(server, streams, begin, slow, stopped)
    pair.serves_again(engine, begin, slow, stopped)
    assert pair.gather or "rank 0 waited 2000 ms for rank 1, which did not come" in server.log()
    assert pair.gather or "another process was lost, and a step here does not end" in pair.follower.log()


@pytest.mark.long
def test_when_the_second_loses_its_parent_another_may_take_its_place(pair):
    server, engine, slow = pair.first, pair.first.engine(), steps(pair.first)
    with streams_of(server, "decode") as streams:
        begin = time.monotonic()
        pair.follower.process.kill()
        all_are_told(server, streams, begin, slow)
    pair.follower.process.wait()
    eventually(lambda: server.engine() not in (None, engine), what="an engine that waits for the second process")
    assert health(server) == 503
    begin, pair.follower = time.monotonic(), follower_of(pair.address, pair.gather)
    pair.serves_again(engine, begin, slow)


@pytest.mark.long
def test_an_order_to_stop_waits_for_what_the_first_still_answers(pair):
    with streams_of(pair.first, "decode", 1, max_tokens=30) as (connections, begun):
        pair.follower.signal()
        pair.first.signal()
        answer = begun[0] + read_until(connections[0], b"[DONE]", None)
    assert b"[DONE]" in answer and b"engine_stopped" not in answer, pair.first.log()
