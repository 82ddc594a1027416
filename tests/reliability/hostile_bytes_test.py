"""Bytes that no client library sends: each gets one answer or a closed connection, and costs next to nothing."""
import contextlib
import re
import socket
import time

import pytest

from watched_server import SANITIZED, Answer, counts, eventually, read_all, request_bytes, serving

OK = b"Host: localhost\r\n"
BODY = b'{"prompt":"a","max_tokens":1}'
JSON = b"Content-Type: application/json\r\n"


def post(fields, body=b""):
    return b"POST /v1/completions HTTP/1.1\r\n" + OK + JSON + fields + b"\r\n" + body


# What two readers of the protocol could understand differently, or no reader should take: (bytes, status).
REFUSED = {
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET /health HTTP/1.1\r\n" + OK + OK + b"\r\n", 400),
    "two hosts that differ": (b"GET /health HTTP/1.1\r\n" + OK + b"Host: b\r\n\r\n", 400),
    "an empty host": (b"GET /health HTTP/1.1\r\nHost:\r\n\r\n", 400),
    "a host with a path": (b"GET /health HTTP/1.1\r\nHost: a/#@b\r\n\r\n", 400),
    "a host with a user": (b"GET /health HTTP/1.1\r\nHost: u@a\r\n\r\n", 400),
    "a bare line feed after the request line": (b"GET /health HTTP/1.1\n" + OK + b"\r\n", 400),
    "a bare line feed after a field": (b"GET /health HTTP/1.1\r\nHost: a\n\r\n", 400),
    "a bare carriage return": (b"GET /health HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400),
    "a folded line": (b"GET /health HTTP/1.1\r\n" + OK + b"X: a\r\n b\r\n\r\n", 400),
    "a field before any name": (b"GET /health HTTP/1.1\r\n X: a\r\n" + OK + b"\r\n", 400),
    "space before a colon": (b"GET /health HTTP/1.1\r\n" + OK + b"X : a\r\n\r\n", 400),
    "a field without a colon": (b"GET /health HTTP/1.1\r\n" + OK + b"X\r\n\r\n", 400),
    "a field without a name": (b"GET /health HTTP/1.1\r\n" + OK + b": a\r\n\r\n", 400),
    "NUL in a value": (b"GET /health HTTP/1.1\r\n" + OK + b"X: a\0b\r\n\r\n", 400),
    "NUL in a name": (b"GET /health HTTP/1.1\r\n" + OK + b"X\0: a\r\n\r\n", 400),
    "NUL in the target": (b"GET /he\0alth HTTP/1.1\r\n" + OK + b"\r\n", 400),
    "a fragment": (b"GET /health#a HTTP/1.1\r\n" + OK + b"\r\n", 400),
    "a target that is no path": (b"GET health HTTP/1.1\r\n" + OK + b"\r\n", 400),
    "an empty target": (b"GET  HTTP/1.1\r\n" + OK + b"\r\n", 400),
    "two spaces": (b"GET  /health HTTP/1.1\r\n" + OK + b"\r\n", 400),
    "a tab for a space": (b"GET\t/health HTTP/1.1\r\n" + OK + b"\r\n", 400),
    "no version": (b"GET /health\r\n" + OK + b"\r\n", 400),
    "a version in lower case": (b"GET /health http/1.1\r\n" + OK + b"\r\n", 400),
    "version 1.10": (b"GET /health HTTP/1.10\r\n" + OK + b"\r\n", 400),
    "version 2": (b"GET /health HTTP/2.0\r\n" + OK + b"\r\n", 505),
    "HTTP/2's preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 505)),
    "a method of other characters": (b"G(T /health HTTP/1.1\r\n" + OK + b"\r\n", 400),
    "a body without a length, then TE": (post(b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"), 400),
    "TE, then a length": (post(b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"), 400),
    "equal lengths twice": (post(b"Content-Length: 4\r\nContent-Length: 4\r\n"), 400),
    "lengths that differ": (post(b"Content-Length: 4\r\nContent-Length: 5\r\n"), 400),
    "a list of lengths": (post(b"Content-Length: 4, 4\r\n"), 400),
    "a negative length": (post(b"Content-Length: -4\r\n"), 400),
    "a length with a sign": (post(b"Content-Length: +4\r\n"), 400),
    "a hexadecimal length": (post(b"Content-Length: 0x4\r\n"), 400),
    "a length with a space": (post(b"Content-Length: 1 0\r\n"), 400),
    "an empty length": (post(b"Content-Length:\r\n"), 400),
    "a length beyond 64 bits": (post(b"Content-Length: 99999999999999999999999\r\n"), 413),
    "an unknown coding": (post(b"Transfer-Encoding: xchunked\r\n"), 501),
    "two codings": (post(b"Transfer-Encoding: chunked, identity\r\n"), 501),
    "gzip and chunked": (post(b"Transfer-Encoding: gzip, chunked\r\n"), 501),
    "chunked twice": (post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), (400, 501)),
    "a coding with a vertical tab": (post(b"Transfer-Encoding: \x0bchunked\r\n"), (400, 501)),
    "chunked in HTTP/1.0": (post(b"Transfer-Encoding: chunked\r\n").replace(b"/1.1", b"/1.0"), 400),
    "a chunk of negative size": (post(b"Transfer-Encoding: chunked\r\n", b"-2\r\nab\r\n"), 400),
    "a chunk size with 0x": (post(b"Transfer-Encoding: chunked\r\n", b"0x2\r\nab\r\n"), 400),
    "a chunk size beyond 64 bits": (post(b"Transfer-Encoding: chunked\r\n", b"FFFFFFFFFFFFFFFFF\r\n"), (400, 413)),
    "a chunk size of one bit less": (post(b"Transfer-Encoding: chunked\r\n", b"FFFFFFFFFFFFFFFF\r\n"), (400, 413)),
    "a chunk longer than it said": (post(b"Transfer-Encoding: chunked\r\n", b"2\r\nabc\r\n0\r\n\r\n"), 400),
    "a chunk line with a bare line feed": (post(b"Transfer-Encoding: chunked\r\n", b"2\nab\r\n0\r\n\r\n"), 400),
    "an empty chunk size": (post(b"Transfer-Encoding: chunked\r\n", b"\r\nab\r\n"), 400),
    "a chunk extension without end": (post(b"Transfer-Encoding: chunked\r\n", b"2;" + b"a" * 5000), 400),
    "a trailer without end": (post(b"Transfer-Encoding: chunked\r\n", b"0\r\n" + b"X: y\r\n" * 5000), 431),
    "an unknown expectation": (post(b"Expect: a-miracle\r\nContent-Length: 4\r\n"), 417),
    "a header of 100 KB": (b"GET /health HTTP/1.1\r\n" + OK + b"X: " + b"a" * 100_000 + b"\r\n\r\n", 431),
    "a thousand fields": (b"GET /health HTTP/1.1\r\n" + OK + b"X: y\r\n" * 1000 + b"\r\n", 431),
    "a target of 20 KB": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + OK + b"\r\n", 414),
    "a body that is too large": (post(b"Content-Length: 99999999\r\n"), 413),
    "TLS on a port in the clear": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", 400),
    "only line ends": (b"\r\n" * 20_000, (400, 431)),
}


def test_what_two_readers_could_understand_differently_is_refused_and_closes(server):
    with server.survives():
        for name, (data, expected) in REFUSED.items():
            # Behind it a request that a reader of the other understanding would serve.
            answer = server.raw(data + b"GET /version HTTP/1.1\r\n" + OK + b"\r\n")
            assert len(re.findall(rb"HTTP/1\.1 \d", answer)) == 1, (name, answer)
            answer = Answer(answer)
            assert answer.status in (expected if isinstance(expected, tuple) else (expected,)), (name, answer.status)
            assert answer.headers["connection"] == "close", name
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}, name


def test_what_is_unusual_and_clear_is_served(server):
    chunked = b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in BODY) + b"0\r\nX: trailer\r\n\r\n"
    for name, data, status in (
        ("an absolute target", b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        ("40 fields and a value of 4 KB", b"GET /health HTTP/1.1\r\n" + OK + b"X: y\r\n" * 40 + b"Y: " + b"a" * 4096 + b"\r\n\r\n", 200),
        ("line ends before the request", b"\r\n\r\nGET /health HTTP/1.1\r\n" + OK + b"\r\n", 200),
        ("HEAD", b"HEAD /health HTTP/1.1\r\n" + OK + b"\r\n", 200),
        ("a chunk for each byte", post(b"Transfer-Encoding: chunked\r\n", chunked), 200),
        ("a coding in other case", post(b"transfer-encoding: Chunked\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)), 200),
        ("an unknown method", b"BREW /health HTTP/1.1\r\n" + OK + b"\r\n", 405),
        ("a GET with a body", b"GET /health HTTP/1.1\r\n" + OK + b"Content-Length: 3\r\n\r\nabc", 200),
        ("a compressed body", post(b"Content-Encoding: gzip\r\nContent-Length: 4\r\n", b"\x1f\x8b\x08\x00"), 415),
        ("HTTP/1.0 without a host", b"GET /health HTTP/1.0\r\n\r\n", 200),
    ):
        answer = Answer(server.raw(data, half_close=True))
        assert answer.status == status, (name, answer.status, answer.body)


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
        assert SANITIZED or resident() - before < 32 * (64 << 10)
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
