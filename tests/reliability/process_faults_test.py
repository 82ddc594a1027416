"""What several processes do when one of them dies, is stopped or ends: streams are told, health says so, and all serve again with the same
answers."""
import contextlib
import os
import signal
import time

import pytest

from processes import free_address, places
from rank_faults_test import StoppedThread, health, read_until, seconds, stream
from watched_server import Server, eventually

RANKS = ("--tp", 2, "--max-num-batched-tokens", 16)
OWNERS = ("--dp", 2, "--max-num-batched-tokens", 32)


@pytest.fixture
def served(request):
    """The first process, which answers, and the second."""
    ranks = getattr(request, "param", RANKS)
    first, second = places(2, free_address())
    follower = Server(*ranks, *second, ready=False)
    try:
        server = Server(*ranks, *first)
    except BaseException:
        follower.process.kill()
        raise
    yield server, follower
    assert server.stop() == 0
    if follower.process.poll() is None:
        follower.signal()
    code = follower.process.wait(timeout=90)
    assert code == 0, follower.log()
    follower.stop()


def serves_again(server, engine, begin, stopped=None):
    def replaced():
        if stopped:
            stopped.reap()
        return server.engine() not in (None, engine) and health(server) == 200
    eventually(replaced, 60, "another engine")
    assert seconds(begin) < 15, server.log()
    assert server.control() == server.before


def told_and_served_again(served, fault, phase):
    server, follower = served
    engine, other = server.engine(), follower.engine()
    if phase == "idle":
        begin = time.monotonic()
        fault(engine, other)
        # Nobody asks anything, so nothing but the process itself can find out.
        eventually(lambda: health(server) != 200, 5, "news of it")
        return serves_again(server, engine, begin)
    with contextlib.closing(stream(server, "This request " + ("goes on and on " * 60 if phase == "prefill" else "says"))) as connection:
        begun = read_until(connection, b"data:", None) if phase == "decode" else b""
        if phase == "prefill":
            eventually(lambda: server.metrics()["vllm:num_requests_running",] == 1)
        begin = time.monotonic()
        fault(engine, other)
        answer = begun + read_until(connection, b"engine_stopped", None)
        assert seconds(begin) < 5, server.log()
        assert b'"code":"engine_stopped' in answer
    serves_again(server, engine, begin)


@pytest.mark.some(1)
@pytest.mark.parametrize("served, phase", [(RANKS, "prefill"), (RANKS, "decode"), (RANKS, "idle"), (OWNERS, "decode")], indirect=["served"])
def test_a_process_that_dies_is_found_out_and_replaced(served, phase):
    told_and_served_again(served, lambda _, other: os.kill(other, signal.SIGKILL), phase)
    assert "the process of rank 1 has gone" in served[0].log()


@pytest.mark.some(1)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_process_that_is_stopped_is_found_out(served, phase):
    told_and_served_again(served, lambda _, other: os.kill(other, signal.SIGSTOP), phase)
    # The first sees that nothing comes, unless the other's own parent has ended it before.
    assert any(words in served[0].log() for words in ("for rank 1, which did not come", "the process of rank 1 has gone"))


@pytest.mark.some(1)
@pytest.mark.parametrize("phase", ["decode", "idle"])
def test_a_rank_of_another_process_that_stands_still_is_given_up_and_its_process_replaced(served, phase):
    """Idle it is stopped where it waits for a step."""
    server, follower = served
    engine, begin = server.engine(), time.monotonic()
    stopped = StoppedThread(follower.engine(), "nibble-engine") if phase == "idle" else None
    with contextlib.closing(stream(server, "This request says")) as connection:
        if phase == "decode":
            read_until(connection, b"data:", None)
            stopped = StoppedThread(follower.engine(), "nibble-engine")
        begin = time.monotonic()
        assert b'"code":"engine_stopped' in read_until(connection, b"engine_stopped", stopped)
        assert seconds(begin) < 5, server.log()
    serves_again(server, engine, begin, stopped)
    assert "for rank 1, which did not come" in server.log()


def test_when_the_first_dies_the_others_come_back_to_the_next(served):
    server, follower = served
    engine, other, begin = server.engine(), follower.engine(), time.monotonic()
    os.kill(engine, signal.SIGKILL)
    serves_again(server, engine, begin)
    assert follower.engine() != other
    assert follower.log().count("runs steps of the first") == 2


def test_an_order_to_stop_waits_for_what_the_first_still_answers(served):
    server, follower = served
    with contextlib.closing(stream(server, "A story", max_tokens=100)) as connection:
        read_until(connection, b"data:", None)
        follower.signal()
        server.signal()
        answer = read_until(connection, b"[DONE]", None)
    assert b"[DONE]" in answer and b"engine_stopped" not in answer, server.log()
