"""SIGTERM: what runs is served to its end or told that it ends, and every stream ends exactly once."""
import os
import signal
import socket

import pytest

from watched_server import Answer, Server, counts, eventually, read_all, request_bytes, together

LONG = {"prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True, "stream": True}


def streams(server, count, **more):
    """Connections whose first bytes have come."""
    connections = [server.connect() for _ in range(count)]
    for i, connection in enumerate(connections):
        connection.sendall(request_bytes("POST", "/v1/completions", LONG | {"seed": i} | more))
    first = [connection.recv(1 << 16) for connection in connections]
    return list(zip(connections, first))


def ends(stream):
    """How a stream ended: the last events that end anything."""
    connection, first = stream
    answer = Answer(first + read_all(connection))
    connection.close()
    events = answer.events()
    finished = [event["choices"][0]["finish_reason"] for event in events if event and event.get("choices") and
                event["choices"][0]["finish_reason"]]
    errors = [event["error"] for event in events if event and "error" in event]
    return finished, len(errors), events.count(None)


def gone(server):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", server.port)) != 0


@pytest.mark.parametrize("count", counts(6, 64))
def test_a_drain_serves_what_runs_and_sends_others_away(count):
    server = Server("--shutdown-timeout", 3600)
    running = streams(server, count, max_tokens=400)
    server.signal()
    health = eventually(lambda: (lambda answer: answer.status == 503 and answer)(server.ask("GET", "/health")))
    assert health.json()["status"] == "draining"
    refused = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert refused.status == 503 and refused.json()["error"]["code"] == "draining" and 1 <= int(refused.headers["retry-after"]) <= 120
    assert [ends(stream) for stream in running] == [(["length"], 0, 1)] * count
    assert server.process.wait(timeout=60) == 0 and gone(server)


@pytest.mark.parametrize("count", counts(12, 64))
def test_without_time_to_drain_every_stream_is_told_that_it_ends(count):
    server = Server("--shutdown-timeout", 0)
    running = streams(server, count)
    waiting = server.connect()
    waiting.sendall(request_bytes("POST", "/v1/completions", LONG | {"stream": False}))
    eventually(lambda: server.metrics()["vllm:num_requests_running",] + server.metrics()["vllm:num_requests_waiting",] == count + 1)
    server.signal()
    assert together(count, lambda i: ends(running[i])) == [([], 1, 0)] * count  # none came to the end of its 1,900 tokens
    assert Answer(read_all(waiting)).status == 503
    assert server.process.wait(timeout=60) == 0 and gone(server)


def test_a_second_signal_does_not_wait():
    server = Server("--shutdown-timeout", 600)
    running = streams(server, 8)
    server.signal(signal.SIGINT)
    eventually(lambda: server.ask("GET", "/health").status == 503)
    server.signal(signal.SIGTERM)
    assert [ends(stream) for stream in running] == [([], 1, 0)] * 8
    assert server.process.wait(timeout=60) == 0 and gone(server)


def test_a_signal_to_parent_and_child_alike_counts_once():
    """As a terminal's Ctrl-C or a service manager sends it."""
    server = Server("--shutdown-timeout", 3600)
    running = streams(server, 2, max_tokens=200)
    os.kill(server.engine(), signal.SIGTERM)
    server.signal(signal.SIGTERM)
    assert [ends(stream) for stream in running] == [(["length"], 0, 1)] * 2
    assert server.process.wait(timeout=60) == 0


def test_a_server_that_is_idle_waits_for_nobody():
    server = Server("--shutdown-timeout", 600)
    server.signal()
    assert server.process.wait(timeout=60) == 0


def test_children_end_with_their_parent():
    server = Server()
    children = server.children()
    assert server.stop() == 0 and len(children) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(children[0], 0)
