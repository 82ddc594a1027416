"""What serve does when its GPU fails: on the emulation of one, which fails when it is told to (ops/cuda/emulation/faults.h)."""
import contextlib
import os
import re
import subprocess
import threading
import time

import pytest

from nibble_program import BINARY, PARITY
from watched_server import Answer, Server, eventually, read_all, request_bytes, serving, until_served

EMULATED = BINARY.with_name("nibble_emulated")
pytestmark = pytest.mark.skipif(not EMULATED.exists(), reason="the emulation of a GPU is not built with sanitizers")
SMALL = ("--max-num-seqs", 2, "--max-num-batched-tokens", 64, "--max-model-len", 512, "--kv-cache-tokens", 2048)


class FailingGpu:
    """A server on an emulated GPU, and the file by which that is told to fail."""

    def __init__(self, server, order):
        self.server, self.order = server, order
        self.asked = 0

    def fail(self, fault):
        """Orders it and returns when an engine has heard of it."""
        written = self.order.with_suffix(".written")
        written.write_text(fault + "\n")
        written.rename(self.order)
        eventually(lambda: not self.order.exists(), 30, "that somebody reads the order")

    def body(self, **more):
        """A request that runs for long, like no other: nobody's suspicion of one falls on the next."""
        self.asked += 1
        return {"prompt": f"Request {self.asked} says", "max_tokens": 400, "temperature": 0, "ignore_eos": True} | more


@contextlib.contextmanager
def failing_gpu(order, *options):
    with serving(*SMALL, *options, model=PARITY / "example", program=EMULATED, EMULATED_GPU_FAULT=order) as server:
        assert {"device": "cuda"}.items() <= {each["field"]: each["value"] for each in server.ask("GET", "/plan").json()["choices"]}.items()
        yield FailingGpu(server, order)


@pytest.fixture
def gpu(tmp_path):
    with failing_gpu(tmp_path / "order") as gpu:
        yield gpu


@pytest.fixture
def gpu_without_graphs(tmp_path):
    """For what becomes of an engine whose end is certain: the next one starts in a third of the time."""
    with failing_gpu(tmp_path / "order", "--enforce-eager") as gpu:
        yield gpu


def seconds_until(condition, most, what):
    begin = time.monotonic()
    eventually(condition, most, what)
    return time.monotonic() - begin


def is_healthy(server):
    with contextlib.suppress(ConnectionResetError, AssertionError):
        return server.ask("GET", "/health").status == 200
    return False


@contextlib.contextmanager
def asked(gpu, body):
    """Somebody asks, and what he is answered is in the list afterwards."""
    answers = []
    asker = threading.Thread(target=lambda: answers.append(gpu.server.ask("POST", "/v1/completions", body)))
    running = gpu.server.metrics()["vllm:num_requests_running",]
    asker.start()
    eventually(lambda: gpu.server.metrics()["vllm:num_requests_running",] == running + 1, what="it runs")
    yield answers
    asker.join()


def hear_of_a_failure(gpu, fault):
    """Fails the GPU under a stream and a request that waits. Returns the seconds until nothing was healthy and until the engine's
    process was gone, both since a call of CUDA's failed or a step hung, once both have been told and another engine answers as the
    first did."""
    server, engine = gpu.server, gpu.server.engine()
    with server.connect() as stream:
        stream.sendall(request_bytes("POST", "/v1/completions", gpu.body(stream=True)))
        begun = stream.recv(1000)
        while b"data:" not in begun:
            begun += stream.recv(1000)
        with asked(gpu, gpu.body()) as waiting:
            failures = server.log().count("cudaErrorIllegalAddress")
            gpu.fail(fault)
            if not fault.startswith("hang"):
                eventually(lambda: server.log().count("cudaErrorIllegalAddress") > failures, what="a call that fails")
            unhealthy = seconds_until(lambda: not is_healthy(server), 20, "that it is not healthy")
            gone = unhealthy + seconds_until(lambda: server.engine() != engine, 20, "the engine's end")
            answer = Answer(begun + read_all(stream))
    print(f"{fault}: unhealthy after {unhealthy:.2f} s, gone after {gone:.2f} s")
    told = answer.events()[-1]
    assert told["error"]["code"] == "engine_stopped" and told["error"]["type"] == "server_error"
    assert not answer.whole  # as a stream is that did not end well
    assert waiting[0].status == 503 and waiting[0].json()["error"]["code"] == "engine_stopped"
    assert waiting[0].headers["retry-after"] == "1"
    until_served(server)
    assert server.control() == server.before
    return unhealthy, gone


@pytest.mark.long
def test_a_lost_gpu_is_noticed_in_a_second_left_in_five_and_taken_up_again(gpu):
    for lives, fault in enumerate(("launch 1", "copy 1", "wait 2"), 1):
        unhealthy, gone = hear_of_a_failure(gpu, fault)
        assert unhealthy <= 1 and gone <= 5, fault
        log = gpu.server.log()
        assert log.count("cudaErrorIllegalAddress") == log.count("the engine's process ended") == lives, log


@pytest.mark.long
def test_a_step_that_never_ends_is_given_up(tmp_path):
    with failing_gpu(tmp_path / "order", "--step-timeout", 3) as gpu:
        unhealthy, gone = hear_of_a_failure(gpu, "hang 1")
        assert 2 <= unhealthy <= 5 and gone <= unhealthy + 5
        assert "the engine hangs" in gpu.server.log()


@pytest.mark.long
def test_an_idle_engine_finds_that_its_gpu_is_lost_before_anybody_asks(tmp_path):
    order = tmp_path / "order"
    with serving(*SMALL, "--self-test-interval", 1, model=PARITY / "example", program=EMULATED, EMULATED_GPU_FAULT=order) as server:
        def counted():
            metrics = server.metrics()
            return [metrics[name,] for name in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "nibble:steps_total")]

        before, tests = counted(), server.metrics()["nibble:self_tests_total",]
        eventually(lambda: server.metrics()["nibble:self_tests_total",] >= tests + 2, 60, "that it tests itself")
        assert counted() == before
        engine = server.engine()
        FailingGpu(server, order).fail("launch 1")
        eventually(lambda: server.engine() not in (None, engine), 30, "another engine")
        until_served(server)
        assert "cudaErrorIllegalAddress" in server.log()


@pytest.mark.extended  # emulated ranks wait for each other on the CPUs that the other tests use
def test_a_gpu_that_does_not_come_to_the_others_ends_the_engine_and_both_are_taken_up_again(tmp_path):
    order = tmp_path / "order"
    with serving(*SMALL, "--tp", 2, "--enforce-eager", "--step-timeout", 15, model=PARITY / "example", program=EMULATED,
                 EMULATED_GPU_FAULT=order, EMULATED_GPUS=2) as server:
        assert {"tp": "2"}.items() <= {each["field"]: each["value"] for each in server.ask("GET", "/plan").json()["choices"]}.items()
        hear_of_a_failure(FailingGpu(server, order), "hang 2")
        log = server.log()
        assert "did not finish its step" in log or "the engine hangs" in log, log


@pytest.mark.long
def test_a_load_in_which_nothing_comes_any_more_is_given_up(tmp_path):
    order = tmp_path / "order"
    order.write_text("hang 1\n")
    begin = time.monotonic()
    server = Server(*SMALL, "--load-timeout", 2, model=PARITY / "example", program=EMULATED, ready=False, EMULATED_GPU_FAULT=order)
    assert server.process.wait(timeout=60) == 1
    assert time.monotonic() - begin >= 2
    assert "the load hangs: nothing has come for longer than --load-timeout 2" in server.log()
    assert server.process.stdout.read() == ""  # nobody was told that it serves
    assert server.stop() == 1


@pytest.mark.long
def test_an_engine_that_hangs_in_its_load_after_another_has_served_is_started_again(tmp_path):
    with failing_gpu(tmp_path / "order", "--load-timeout", 8, "--enforce-eager") as gpu:
        with asked(gpu, gpu.body()):
            gpu.fail("launch 1")
            gpu.fail("hang 1")  # of the next engine
        until_served(gpu.server)
        log = gpu.server.log()
        assert "the load hangs" in log and log.count("the engine's process ended") == 2
        assert gpu.server.control() == gpu.server.before


@pytest.mark.long
def test_a_request_that_twice_ends_the_gpus_engine_is_not_tried_again(gpu_without_graphs):
    poison = gpu_without_graphs.body(prompt="This one ends the GPU's engine")
    for _ in range(2):
        with asked(gpu_without_graphs, poison) as answer:
            gpu_without_graphs.fail("launch 1")
        assert answer[0].status == 503
        until_served(gpu_without_graphs.server)
    answer = gpu_without_graphs.server.ask("POST", "/v1/completions", poison)
    assert answer.status == 403 and answer.json()["error"]["code"] == "request_ends_engine"


@pytest.mark.long
def test_a_gpu_whose_memory_is_still_taken_is_tried_again(gpu_without_graphs):
    """A dead engine's memory may be given back late: the next one then finds none, says so, and another one is started."""
    with asked(gpu_without_graphs, gpu_without_graphs.body()):
        gpu_without_graphs.fail("launch 1")
        gpu_without_graphs.fail("allocation 1")  # of the next engine
    until_served(gpu_without_graphs.server)
    log = gpu_without_graphs.server.log()
    assert "memory for a buffer of" in log and log.count("the engine's process ended") == 2
    assert gpu_without_graphs.server.control() == gpu_without_graphs.server.before


def test_a_graph_of_other_bits_than_its_launches_is_refused_at_the_start(tmp_path):
    order = tmp_path / "order"
    command = [EMULATED, "generate", PARITY / "example", "--prompt", "Once", "--max-tokens", "2", *map(str, SMALL)]

    def generate(graph, *more):
        order.write_text(f"graph {graph}\n")
        return subprocess.run([*command, *more], env=os.environ | {"EMULATED_GPU_FAULT": str(order)}, capture_output=True, text=True, timeout=120)

    for graph, of in enumerate(["1 sequences", "1 sequences with short contexts", "2 sequences"], start=1):
        refused = generate(graph)
        assert refused.returncode != 0 and refused.stdout == ""
        assert re.search(rf"the CUDA graph of {of} gives other bits than its launches one by one in \d+ logits; --enforce-eager runs without", refused.stderr)
    assert generate(2, "--enforce-eager").returncode == 0
