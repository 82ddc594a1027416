"""What serve does when a rank of a CPU stops or computes without end, in a prompt, in an answer and idle, and when the engine's process
is stopped or killed that has several: streams are told, health says so, and another engine serves. A single thread is stopped, or sent
to an endless loop, by ptrace, as a debugger does it, so no line of the program knows of it."""
import contextlib
import ctypes
import os
import platform
import signal
import time
from pathlib import Path

import pytest

from watched_server import SANITIZED, eventually, request_bytes, serving

RANKS = ("--tp", 2, "--threads", 2, "--max-num-batched-tokens", 16)
GROUPS = ("--tp", 4, "--dp", 2, "--threads", 4, "--max-num-batched-tokens", 32)
SLACK = 10 if SANITIZED else 1
ANY_THREAD = 0x40000000  # __WALL
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]


class StoppedThread:
    """A thread of that name of the engine's process stands still, and others do not."""

    def __init__(self, engine, name, index=0):
        self.thread = oldest_threads(engine, name)[index]
        for request in (0x4206, 0x4207):  # PTRACE_SEIZE, PTRACE_INTERRUPT
            if LIBC.ptrace(request, self.thread, None, None) != 0:
                pytest.skip(f"ptrace is not allowed here: {os.strerror(ctypes.get_errno())}")
        os.waitpid(self.thread, ANY_THREAD)

    def loop(self):
        """It goes on in an endless loop: at a jump to itself (EB FE), which any two neighbouring bytes of code may be."""
        registers = (ctypes.c_ulonglong * 27)()  # struct user_regs_struct
        call, instruction = 15, 16  # orig_rax, rip
        assert LIBC.ptrace(12, self.thread, None, ctypes.addressof(registers)) == 0  # PTRACE_GETREGS
        registers[instruction] = endless_jump(self.thread)
        registers[call] = 2**64 - 1  # a wait that was interrupted is not begun again, which would move the place
        assert LIBC.ptrace(13, self.thread, None, ctypes.addressof(registers)) == 0  # PTRACE_SETREGS
        assert LIBC.ptrace(17, self.thread, None, None) == 0  # PTRACE_DETACH
        self.before = self.cpu_seconds()
        return self

    def cpu_seconds(self):
        numbers = Path(f"/proc/{self.thread}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, numbers[11:13])) / os.sysconf("SC_CLK_TCK")

    def looped(self):
        """Seconds of CPU time so far, which are what a loop is told by: a busy machine lets it run seldom."""
        return self.cpu_seconds() - self.before

    def reap(self):
        """Its process cannot end before who traces it has heard of its end."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.thread, os.WNOHANG | ANY_THREAD)


def oldest_threads(engine, name):
    """Of that name, the oldest first: blocks of an emulated GPU have the name of the rank that starts them, come and go, and take the
    lowest numbers where the system begins again with those."""
    threads = []
    for task in Path(f"/proc/{engine}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            before, _, fields = (task / "stat").read_text().rpartition(")")
            if before.partition("(")[2] == name:
                threads.append((int(fields.split()[19]), int(task.name)))  # when it began
    return [thread for _, thread in sorted(threads)]


def endless_jump(thread):
    with open(f"/proc/{thread}/mem", "rb") as memory:
        for line in Path(f"/proc/{thread}/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            if "x" not in rights or "/" not in line:
                continue
            begin, end = (int(each, 16) for each in place.split("-"))
            memory.seek(begin)
            if (at := memory.read(end - begin).find(b"\xeb\xfe")) >= 0:
                return begin + at
    pytest.skip("no code of this process jumps to itself")


@pytest.fixture
def server():
    with serving(*RANKS) as server:
        yield server


def seconds(begin):
    return (time.monotonic() - begin) / SLACK


def stream(server, prompt, max_tokens=1000):
    connection = server.connect(timeout=120)
    connection.sendall(request_bytes("POST", "/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True,
                                                                 "temperature": 0, "stream": True}))
    return connection


def read_until(connection, end, stopped):
    """What comes until the connection ends or `end` has."""
    connection.settimeout(0.1)
    data, begin = b"", time.monotonic()
    while end is None or end not in data:
        assert seconds(begin) < 60, data
        try:
            more = connection.recv(65536)
        except TimeoutError:
            more = None
        except ConnectionResetError:
            break
        if stopped:
            stopped.reap()
        if more == b"":
            break
        data += more or b""
    return data


def health(server):
    with contextlib.suppress(ConnectionError, TimeoutError, AssertionError):
        return server.ask("GET", "/health").status
    return None


def serves_again(server, engine, begin, stopped=None):
    """Another process answers as the first did, within 15 s of the fault."""
    def replaced():
        if stopped:
            stopped.reap()
        return server.engine() not in (None, engine) and health(server) == 200
    eventually(replaced, 30, "another engine")
    assert seconds(begin) < 15, server.log()
    assert server.control() == server.before


asked = iter(range(1000))


def unlike(phase):
    return f"Request {next(asked)} {phase} " + ("and goes on to say many things " * 60 if phase == "prefill" else "says")


@pytest.mark.parametrize("options, exchange", [(RANKS, None), ((*RANKS, "--ep", 2), "normal"),
                                               ((*RANKS, "--ep", 2, "--moe-a2a-backend", "low_latency"), "low_latency"),
                                               ((*RANKS, "--ep", 2, "--dp-attention"), "normal"), (GROUPS, "normal")])
def test_metrics_count_what_ran_and_that_is_what_was_planned(options, exchange):
    with serving(*options) as server:
        def counted():
            rows = [(name[1:], value) for name, value in server.metrics().items() if name[0] == "nibble:ran_total"]
            return {(field, value, form): times for (field, form, value), times in rows}  # labels by name
        before = counted()
        server.control()
        ran = {name: times - before.get(name, 0) for name, times in counted().items()}
        planned = {choice["field"]: choice["value"] for choice in server.ask("GET", "/plan").json()["choices"]}
        assert all(planned[field] == value for field, value, _ in ran), ran
        assert (("all_reduce", "gather", "gather_columns") in ran) == (planned["all_reduce"] == "gather")
        assert ran["attention", planned["attention"], ""] > 0
        exchanges = {(value, form) for field, value, form in ran if field == "token_exchange"}
        assert exchanges == ({(exchange, "dispatch"), (exchange, "combine")} if exchange else set())
        assert server.ask("GET", "/health").json() == {"status": "ok"}


def thread_of(rank):
    return ("engine-rank", rank - 1) if rank else ("engine-steps", 0)


def is_named(log, rank):
    """The engine's thread is rank 0; where it stands still between two steps nobody waits for it there."""
    return any(words in log for words in (f"for rank {rank}, which did not come", f"rank {rank} did not finish its step"))


def stop_a_rank(server, rank, phase, streams=1):
    """It stands still while so many streams are served, or before they begin. They are told, and another engine serves."""
    engine = server.engine()
    if phase == "idle":
        stopped, begin = StoppedThread(engine, *thread_of(rank)), time.monotonic()
    with contextlib.ExitStack() as open_streams:
        connections = [open_streams.enter_context(stream(server, unlike(phase))) for _ in range(streams)]
        answers = [b""] * streams
        if phase == "decode":
            answers = [read_until(connection, b"data:", None) for connection in connections]
        elif phase == "prefill":
            eventually(lambda: server.metrics()["vllm:num_requests_running",] == streams)
        if phase != "idle":
            stopped, begin = StoppedThread(engine, *thread_of(rank)), time.monotonic()
        for connection, begun in zip(connections, answers):
            answer = begun + read_until(connection, b"engine_stopped", stopped)
            assert seconds(begin) < 5, server.log()
            assert (b'"text"' in begun) == (phase == "decode")
            assert b'"code":"engine_stopped' in answer
        told = time.monotonic()
        while (status := health(server)) == 200:
            stopped.reap()
            assert seconds(told) < 1, "health is told late"
        assert status in (None, 503)
    serves_again(server, engine, begin, stopped)


@pytest.mark.some(2)
@pytest.mark.parametrize("rank", [1, 0])
@pytest.mark.parametrize("phase", ["prefill", "decode", "idle"])
def test_a_rank_that_stands_still_is_given_up(server, rank, phase):
    stop_a_rank(server, rank, phase)


@pytest.mark.some(2)
@pytest.mark.parametrize("options, rank", [((*RANKS, "--ep", 2, "--dp-attention"), 1), (GROUPS, 0), (GROUPS, 1), (GROUPS, 3)])
@pytest.mark.parametrize("phase", ["prefill", "decode", "idle"])
def test_a_rank_with_sequences_of_its_own_that_stands_still_is_given_up_and_named(options, rank, phase):
    with serving(*options) as server:
        stop_a_rank(server, rank, phase, streams=2)
        assert rank == 0 or is_named(server.log(), rank)


def send_a_rank_to_a_loop(server, rank, phase):
    engine = server.engine()
    if phase == "idle":
        begin = time.monotonic()
        looping = StoppedThread(engine, *thread_of(rank)).loop()
    with stream(server, unlike(phase)) as connection:
        if phase == "decode":
            read_until(connection, b"data:", None)
            begin = time.monotonic()
            looping = StoppedThread(engine, *thread_of(rank)).loop()
        told = read_until(connection, b"engine_stopped", None)
        looped, took = looping.looped(), seconds(begin)
        assert b'"code":"engine_stopped' in told
        # The engine's own rank is looked at only once its step is late.
        assert took < 5 or looped < 3, server.log()
    serves_again(server, engine, time.monotonic())


@pytest.mark.some(1)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="registers of x86")
@pytest.mark.parametrize("rank, phase", [(1, "decode"), (1, "idle"), (0, "decode"), (0, "idle")])
def test_a_rank_in_an_endless_loop_is_given_up(server, rank, phase):
    send_a_rank_to_a_loop(server, rank, phase)


@pytest.mark.some(1)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="registers of x86")
@pytest.mark.parametrize("options, rank", [((*RANKS, "--ep", 2, "--dp-attention"), 1), (GROUPS, 3)])
@pytest.mark.parametrize("phase", ["decode", "idle"])
def test_a_rank_with_sequences_of_its_own_in_an_endless_loop_is_given_up_and_named(options, rank, phase):
    with serving(*options) as server:
        send_a_rank_to_a_loop(server, rank, phase)
        assert is_named(server.log(), rank)


def test_the_rank_that_stands_still_is_named(server):
    engine = server.engine()
    with stream(server, unlike("decode")) as connection:
        read_until(connection, b"data:", None)
        stopped, begin = StoppedThread(engine, "engine-rank"), time.monotonic()
        read_until(connection, b"engine_stopped", stopped)
    serves_again(server, engine, begin, stopped)
    assert is_named(server.log(), 1)


@pytest.mark.some(1)
@pytest.mark.parametrize("phase", ["decode", "idle"])
def test_an_engine_that_is_stopped_tells_whom_it_serves_and_is_replaced(server, phase):
    engine = server.engine()
    with contextlib.ExitStack() as open_streams:
        if phase == "decode":
            connection = open_streams.enter_context(stream(server, unlike(phase)))
            read_until(connection, b"data:", None)
        os.kill(engine, signal.SIGSTOP)
        begin = time.monotonic()
        if phase == "decode":
            assert b"engine_stopped" in read_until(connection, b"engine_stopped", None)
            assert seconds(begin) < 5, server.log()
    serves_again(server, engine, begin)


@pytest.mark.long
def test_an_engine_that_is_stopped_for_a_moment_goes_on(server):
    engine = server.engine()
    with stream(server, unlike("decode")) as connection:
        read_until(connection, b"data:", None)
        os.kill(engine, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(engine, signal.SIGCONT)
        assert b"[DONE]" in read_until(connection, b"[DONE]", None)
    assert server.engine() == engine and server.control() == server.before


@pytest.mark.some(1)
@pytest.mark.parametrize("phase", ["prefill", "decode", "idle"])
def test_a_killed_engine_of_several_ranks_is_replaced(server, phase):
    engine = server.engine()
    with contextlib.ExitStack() as open_streams:
        if phase != "idle":
            connection = open_streams.enter_context(stream(server, unlike(phase)))
            eventually(lambda: server.metrics()["vllm:num_requests_running",] == 1)
        os.kill(engine, signal.SIGKILL)
        begin = time.monotonic()
        if phase != "idle":
            assert b"[DONE]" not in read_until(connection, None, None)
            assert seconds(begin) < 5
    serves_again(server, engine, begin)
