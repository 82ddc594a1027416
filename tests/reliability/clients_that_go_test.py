"""Clients that hang up: whatever they asked for ends with them."""
import random
import socket
import time

import pytest

from watched_server import counts, eventually, read_all, request_bytes, reset, together

LONG = {"prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True}


def begin(server, stream, prompt=LONG["prompt"]):
    connection = server.connect()
    connection.sendall(request_bytes("POST", "/v1/completions", LONG | {"stream": stream, "prompt": prompt}))
    return connection


@pytest.mark.parametrize("clients", counts(24, 500))
def test_requests_of_clients_that_hang_up_are_cancelled(server, clients):
    with server.survives():
        before = server.aborts()
        order = random.Random(1)
        plans = [(order.random() < 0.5, order.random() < 0.5, order.randrange(4), order.random() * 0.2) for _ in range(clients)]

        def hang_up(i):
            stream, abrupt, chunks, pause = plans[i]
            connection = begin(server, stream)
            if stream:  # in the queue, in its prompt, or at some token
                for _ in range(chunks):
                    if not connection.recv(300):
                        break
            else:
                time.sleep(pause)
            reset(connection) if abrupt else connection.close()

        for batch in range(0, clients, 50):  # not more at once than the queue takes
            together(min(50, clients - batch), lambda i: hang_up(batch + i))
            eventually(lambda: server.aborts() - before == min(batch + 50, clients), 30, "every abort counted")


def test_no_step_is_run_for_a_client_that_went(server):
    """How many steps the engine needs for that, two at most, is the scheduler's tests' to count."""
    before, steps = server.aborts(), server.metrics()["nibble:steps_total",]
    connection = begin(server, stream=True)
    connection.recv(1000)
    reset(connection)
    eventually(lambda: server.aborts() == before + 1, what="the abort")
    eventually(server.idle, what="idle")
    stopped = server.metrics()["nibble:steps_total",]
    assert stopped - steps < LONG["max_tokens"] / 2
    time.sleep(0.2)
    assert server.metrics()["nibble:steps_total",] == stopped


def test_a_half_closed_client_gets_its_whole_stream(server):
    with server.survives():
        body = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}
        answer = server.raw(request_bytes("POST", "/v1/completions", body), half_close=True)
        assert answer.rstrip().endswith(b"0") and answer.count(b"data: [DONE]") == 1 and answer.count(b'"finish_reason":"length"') == 1


def test_a_half_closed_client_gets_its_whole_answer_after_a_sign_of_life(server):
    with server.survives():
        body = {"prompt": "Once", "max_tokens": 600, "ignore_eos": True}
        answer = server.raw(request_bytes("POST", "/v1/completions", body), half_close=True)
        *signs, head, content = answer.split(b"\r\n\r\n")
        assert all(sign == b"HTTP/1.1 100 Continue" for sign in signs) and head.startswith(b"HTTP/1.1 200")
        assert b'"completion_tokens":600' in content


def test_a_client_that_closed_in_silence_is_noticed_before_its_answer_is_due(server):
    with server.survives():
        before = server.aborts()
        begin(server, stream=False).close()  # a FIN and nothing else, as from a client that only half-closed
        eventually(lambda: server.aborts() == before + 1, what="the abort")  # unnoticed it would end as a whole answer, and none


def test_clients_that_go_while_they_wait_in_the_queue_leave_it(server):
    with server.survives():
        before = server.aborts()
        running = [begin(server, stream=True) for _ in range(16)]
        for connection in running:
            connection.recv(1000)
        waiting = [begin(server, stream=i % 2 == 0) for i in range(8)]
        eventually(lambda: server.metrics()["vllm:num_requests_waiting",] == 8, what="a queue of 8")
        for connection in waiting:
            connection.close()
        eventually(lambda: server.metrics()["vllm:num_requests_waiting",] == 0, what="an empty queue")
        assert server.metrics()["vllm:num_requests_running",] == 16, "nobody had to end for it"
        for connection in running:
            reset(connection)
        eventually(lambda: server.aborts() - before == 24, what="every abort counted")


def test_requests_sent_ahead_are_answered_in_order(server):
    data = b"".join(request_bytes("POST", "/v1/completions", {"prompt": [i + 5], "max_tokens": 1, "return_token_ids": True}) for i in range(6))
    with server.connect() as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answers = read_all(connection)
    ids = [int(part.split(b"]")[0]) for part in answers.split(b'"prompt_token_ids":[')[1:]]
    assert answers.count(b"HTTP/1.1 200") == 6 and (not ids or ids == list(range(5, 11)))
