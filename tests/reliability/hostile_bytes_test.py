"""Bytes that no client library sends: each gets one answer or a closed connection, and costs next to nothing."""
import contextlib
import socket
import time

import pytest

from framing_probes import BODY, OK, post
from watched_server import SANITIZED, Answer, counts, eventually, read_all, request_bytes, serving


def test_a_client_that_waits_for_100_gets_it_or_the_answer(server):
    with server.connect() as connection:
        connection.sendall(post(b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n" % len(BODY)))
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert Answer(read_all(connection)).status == 200
    with serving("--api-key", "secret", ready=False) as closed:
        closed.port = int(closed.process.stdout.readline().strip().rsplit(":", 1)[1])
        with closed.connect() as connection:
            connection.sendall(post(b"Expect: 100-continue\r\nContent-Length: %d\r\n" % len(BODY)))
            answer = Answer(read_all(connection))  # at once, without the body
            assert answer.status == 401 and answer.headers["connection"] == "close"


@pytest.mark.parametrize("share", counts(10, 1))
def test_floods_end_in_a_refusal_and_cost_no_memory(server, share):
    """Headers of 100 MB and of 100,000 fields, chunks without end, a body of one-byte chunks."""
    with server.survives():
        for begin, piece, times, statuses in (
            (b"GET / HTTP/1.1\r\n" + OK + b"X: ", b"a" * 100_000, 1000 // share, {431}),
            (b"GET / HTTP/1.1\r\n" + OK, b"X-Y: z\r\n" * 1000, 100 // share, {431}),
            (post(b"Transfer-Encoding: chunked\r\n"), b"10000\r\n" + b" " * 0x10000 + b"\r\n", 2000 // share, {413}),
            (post(b"Transfer-Encoding: chunked\r\n"), b"1\r\n \r\n" * 10_000, 500, {413}),
        ):
            with server.connect() as connection:
                with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                    connection.sendall(begin)
                    for _ in range(times):
                        connection.sendall(piece)
                data = read_all(connection)
            assert not data or Answer(data).status in statuses, data[:100]  # a reset may overtake the answer


def test_bodies_of_clients_without_a_key_are_not_kept():
    with serving("--api-key", "secret", ready=False) as server:
        server.port = int(server.process.stdout.readline().strip().rsplit(":", 1)[1])
        key = {"Authorization": "Bearer secret"}

        def resident():
            text = server.ask("GET", "/metrics", **key).body.decode()
            return float(next(line.split()[1] for line in text.splitlines() if line.startswith("process_resident_memory_bytes")))

        before = resident()
        connections = [server.connect() for _ in range(32)]
        for connection in connections:
            connection.sendall(post(b"Content-Length: 4000000\r\n", b" " * 3_900_000))
        # Of the 125 MB that came no more than 64 KB a connection, beside what a process that still starts grows by.
        assert SANITIZED or resident() - before < 32 * (64 << 10) + (4 << 20)
        for connection in connections:
            connection.sendall(b" " * 100_000)
            assert Answer(connection.recv(1 << 16)).status == 401
            connection.close()


def test_drips_are_answered_408_and_silence_is_closed(impatient):
    """A second is what half a minute is by default."""
    with impatient.survives():
        for begin, drip in ((b"GET /health HTTP/1.1\r\nX: ", b"a"), (post(b"Content-Length: 1000\r\n"), b" "),
                            (post(b"Transfer-Encoding: chunked\r\n"), b"1\r\n \r\n")):
            with impatient.connect() as connection:
                connection.sendall(begin)
                connection.settimeout(0.1)
                data, start = b"", time.monotonic()
                while b"\r\n\r\n" not in data and time.monotonic() - start < 20:
                    with contextlib.suppress(TimeoutError):
                        connection.sendall(drip)
                        data += connection.recv(1000)
                assert Answer(data).status == 408


@pytest.mark.parametrize("readers, headers", [(8, 40), pytest.param(1000, 2000, marks=pytest.mark.extended)])
def test_clients_that_never_read_or_never_finish_are_dropped_and_others_served(impatient, readers, headers):
    """Each stream would be 3 MB; the server holds 256 KB of it, the system as much again."""
    body = {"prompt": "a", "max_tokens": 1, "logprobs": 5, "n": 1}
    # The system gives memory when it is first written, and so many sequences write all that the plan set aside.
    planned = impatient.ask("GET", "/plan").json()["memory"]
    with impatient.survives(growth_mib=(planned["kv"] + planned["workspace"]) / (1 << 20) + 16, quickly=90):
        slow = []
        for _ in range(headers):
            connection = impatient.connect()
            connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
            slow.append(connection)
        unread = []
        for i in range(readers):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", impatient.port))
            connection.sendall(request_bytes("POST", "/v1/completions", {
                "prompt": "Once", "max_tokens": 1900, "ignore_eos": True, "stream": True, "logprobs": 5, "seed": i, "n": 2}))
            unread.append(connection)
        for _ in range(5):  # somebody else's day goes on
            assert impatient.ask("GET", "/health").status == 200
            assert impatient.ask("POST", "/v1/completions", body).status in (200, 429)
        # Whoever never reads loses the connection while most of the answer is still to come.
        eventually(impatient.idle, 300 + readers, "every stream dropped")
        for connection in slow + unread:
            connection.close()


@pytest.mark.parametrize("count", counts(300, 10_000))
def test_idle_connections_cost_little(count):
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count + 100:
        pytest.skip(f"this machine grants {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with serving("--max-connections", count + 50) as server:
        before = server.metrics()["process_resident_memory_bytes",]
        connections = []
        for _ in range(count):
            connection = server.connect()
            connection.sendall(b"GET /version HTTP/1.1\r\n" + OK + b"\r\n")
            connections.append(connection)
        for connection in connections:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        metrics = server.metrics()
        assert metrics["nibble:connections",] >= count
        held = (metrics["process_resident_memory_bytes",] - before) / count
        print(f"{count} idle connections hold {held:.0f} bytes each")
        assert SANITIZED or held < 15_000  # 10,000 in 150 MB
        for connection in connections:
            connection.close()


def test_a_full_house_makes_room_by_closing_who_is_idle():
    with serving("--max-connections", 20) as server:
        idle = [server.connect() for _ in range(40)]
        for _ in range(5):
            assert server.ask("GET", "/health").status == 200
        for connection in idle:
            connection.close()


def test_running_out_of_descriptors_is_survived():
    with serving(descriptors=64) as server, server.survives():
        busy = [server.connect() for _ in range(100)]  # more than it can accept
        for connection in busy[:60]:
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
        time.sleep(0.3)
        for connection in busy:
            connection.close()
        eventually(lambda: server.ask("GET", "/health").status == 200)
