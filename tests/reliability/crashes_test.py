"""What happens when the engine's process dies, and who is held to account."""
import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

from nibble_program import ROOT
from watched_server import Server, eventually, listening_ports, read_all, request_bytes, serving, until_served

POISON = {"prompt": "This one ends the engine", "max_tokens": 1900, "ignore_eos": True}


def kill_engine(server):
    old = server.engine()
    os.kill(old, signal.SIGKILL)
    eventually(lambda: server.engine() not in (None, old), what="a new engine")


def die_of(server, body, **more):
    """The engine is killed while it serves this request."""
    with server.connect() as connection:
        connection.sendall(request_bytes("POST", "/v1/completions", body | {"stream": True} | more))
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        kill_engine(server)
        assert b"[DONE]" not in read_all(connection)
    until_served(server)


def test_a_dead_engine_is_replaced_and_answers_as_before():
    with serving() as server:
        for _ in range(3):
            kill_engine(server)
            until_served(server)
            assert server.control() == server.before
        assert server.process.poll() is None


def fail_a_check(server):
    """What the engine's thread does when it finds a check failed: it aborts, by a signal of its own."""
    engine = server.engine()
    steps = next(task for task in Path(f"/proc/{engine}/task").iterdir() if (task / "comm").read_text() == "engine-steps\n")
    tgkill = 234  # on x86-64
    assert ctypes.CDLL(None).syscall(tgkill, engine, int(steps.name), signal.SIGABRT) == 0


def test_who_is_served_while_a_check_fails_is_told_so():
    with serving() as server, server.connect() as connection:
        engine = server.engine()
        connection.sendall(request_bytes("POST", "/v1/completions", POISON | {"stream": True}))
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        fail_a_check(server)
        eventually(lambda: server.ask("GET", "/health").status == 503, 2)
        assert b'"code":"engine_stopped"' in read_all(connection)
        eventually(lambda: server.engine() not in (None, engine), 5, "a new engine")
        until_served(server)
        assert server.control() == server.before and 'signal=6' in server.log()


def test_while_there_is_no_engine_clients_are_told_to_come_back():
    with serving() as server:
        statuses = set()
        for _ in range(4):  # each pause is twice the last: 0.1 s to 0.8 s
            os.kill(server.engine(), signal.SIGKILL)
            eventually(lambda: server.engine() is None or len(server.children()) == 1, 5)
            end = time.monotonic() + 30
            while time.monotonic() < end:
                with contextlib.suppress(ConnectionResetError, AssertionError):
                    health = server.ask("GET", "/health")
                    if health.status == 200:
                        break
                    statuses.add((health.status, health.json()["status"], health.headers["retry-after"]))
                    answer = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
                    assert answer.status in (200, 503)
                    if answer.status == 503:
                        assert answer.json()["error"]["type"] == "server_error" and answer.headers["retry-after"] == "1"
        assert (503, "restarting", "1") in statuses


def test_a_request_that_ended_the_engine_twice_is_not_tried_again():
    with serving() as server:
        die_of(server, POISON)
        die_of(server, POISON)
        answer = server.ask("POST", "/v1/completions", POISON | {"stream": True})
        assert answer.status == 403 and answer.json()["error"]["code"] == "request_ends_engine"
        assert answer.headers["x-should-retry"] == "false"
        assert server.control() == server.before  # nobody else is concerned
        assert server.ask("POST", "/v1/completions", POISON | {"max_tokens": 3}).status == 200


def test_suspects_run_one_at_a_time_and_an_answer_clears_them():
    with serving() as server:
        innocent = POISON | {"prompt": "This one was there by chance", "max_tokens": 300}
        with server.connect() as bystander:
            bystander.sendall(request_bytes("POST", "/v1/completions", innocent | {"stream": True}))
            bystander.recv(1000)
            die_of(server, POISON)
        with server.connect() as suspect:
            suspect.sendall(request_bytes("POST", "/v1/completions", POISON | {"stream": True}))
            suspect.recv(1000)
            answer = server.ask("POST", "/v1/completions", innocent | {"stream": True})
            assert answer.status == 503 and answer.json()["error"]["code"] == "suspected_request"
        eventually(lambda: server.ask("POST", "/v1/completions", innocent | {"stream": True}).status == 200, 20, "its turn")
        # Cleared, it may be there at another death and stays welcome.
        die_of(server, innocent)
        assert server.ask("POST", "/v1/completions", innocent | {"stream": True}).status == 200


def test_the_parent_holds_no_model_and_its_children_die_with_it():
    server = Server()
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    assert int(re.search(r"VmRSS:\s+(\d+)", status)[1]) < 64 << 10
    assert "model.safetensors" not in Path(f"/proc/{server.process.pid}/maps").read_text()
    assert re.search(r"Threads:\s+1\n", status)
    engine = server.engine()
    server.process.kill()
    server.process.wait()
    eventually(lambda: not Path(f"/proc/{engine}").exists() or "State:\tZ" in Path(f"/proc/{engine}/status").read_text(), 10,
               "the engine's end")


def test_one_process_serves_where_no_parent_is_wanted():
    with serving("--no-supervise") as server:
        assert server.children() == [] and server.control() == server.before


def test_a_model_that_cannot_be_loaded_is_said_and_not_tried_again(tmp_path):
    server = Server(model=tmp_path, ready=False)
    assert server.process.wait(timeout=60) == 3 and server.log().count("error:") == 1
    server.process.stdout.close()


def copied_model(folder):
    source = ROOT / "models/demo"
    shutil.copytree(source, folder / "model")
    return folder / "model"


def test_a_model_file_that_shrinks_while_it_is_served_ends_no_process_unheard(tmp_path):
    """The mapped pages are gone: who asks gets an error, the engine goes, and one that finds the file whole serves again."""
    model = copied_model(tmp_path)
    [weights] = model.glob("*.safetensors")
    whole = weights.read_bytes()
    with serving(model=model) as server:
        os.truncate(weights, len(whole) // 2)
        answer = server.ask("POST", "/v1/completions", {"prompt": "Once upon a time there was a frog", "max_tokens": 40})
        assert answer.status == 503 and answer.json()["error"]["code"] == "engine_stopped", answer.body
        assert answer.headers["retry-after"] == "1" and "x-should-retry" not in answer.headers
        eventually(lambda: "the engine failed" in server.log(), 10, "the engine's end")
        eventually(lambda: server.ask("GET", "/health").status == 503, 10)
        weights.write_bytes(whole)
        until_served(server)
        assert server.control() == server.before


def test_the_port_is_held_from_the_first_moment_and_says_that_the_model_loads(tmp_path):
    model = copied_model(tmp_path)
    rest = (model / "tokenizer.json").read_text().lstrip()[1:]
    (model / "tokenizer.json").write_text('{"unused":[' + "0," * 30_000_000 + "0]," + rest)  # which takes a while to read
    for _ in range(10):  # a busy machine may let the load end before a question comes through
        server = Server(model=model, ready=False)
        try:
            [(_, server.port)] = eventually(lambda: listening_ports([server.process.pid])[0], what="the port")
            answers = [server.ask("GET", path) for path in ("/health", "/ready", "/metrics", "/v1/models")]
            answers.append(server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}))
            server.signal()
            assert server.process.wait(timeout=60) == 0  # while it loads, too
        finally:
            server.process.kill()
            server.process.stdout.close()
        if all(answer.status == 503 for answer in answers):
            assert [answer.json().get("status") for answer in answers[:2]] == ["loading"] * 2
            assert {answer.json()["error"]["code"] for answer in answers[2:]} == {"loading"}
            assert all("retry-after" in answer.headers for answer in answers)
            return
    raise AssertionError("it was never seen loading")
