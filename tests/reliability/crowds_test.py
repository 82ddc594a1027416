"""Crowds of clients that send half a request: everybody else is answered as if they were not there."""
import contextlib
import resource
import selectors
import socket
import time

import pytest

from watched_server import SANITIZED, Answer, request_bytes, serving

HALF = {"a head": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ", "nothing": b"",
        "a body": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"}
COUNT = 10_000
MOST_SECONDS = 1 if not SANITIZED else 20


@pytest.fixture(autouse=True)
def descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < COUNT + 200:
        pytest.skip(f"this machine grants {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Crowd:
    """Connections that are kept, whatever the server does with them."""

    def __init__(self, port, addresses, data):
        self.port, self.addresses, self.data = port, addresses, data
        self.connections = []

    def grow(self, count):
        waiting = selectors.DefaultSelector()
        for i in range(count):
            connection = socket.socket()
            connection.setblocking(False)
            connection.bind((self.addresses[i % len(self.addresses)], 0))
            with contextlib.suppress(BlockingIOError):
                connection.connect(("127.0.0.1", self.port))
            self.connections.append(connection)
            waiting.register(connection, selectors.EVENT_WRITE)
        end = time.monotonic() + 60
        while waiting.get_map() and time.monotonic() < end:
            for key, _ in waiting.select(1):
                waiting.unregister(key.fileobj)
                with contextlib.suppress(OSError):  # closed by now, perhaps
                    key.fileobj.send(self.data)
        waiting.close()

    def left(self):
        """How many the server still holds."""
        held = 0
        for connection in self.connections:
            try:
                held += connection.recv(1, socket.MSG_PEEK) != b""
            except BlockingIOError:
                held += 1
            except OSError:
                pass
        return held

    def close(self):
        for connection in self.connections:
            connection.close()


def seconds_of(server, method, path, body=None):
    begin = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(request_bytes(method, path, body, Connection="close"))
        data = b""
        while part := connection.recv(1 << 16):
            data += part
    assert Answer(data).status == 200
    return time.monotonic() - begin


@pytest.mark.parametrize("half", HALF)
@pytest.mark.parametrize("addresses", [1, 250])
def test_half_sent_requests_lock_nobody_out(addresses, half):
    with serving("--max-num-seqs", 4) as server, server.survives(growth_mib=48):
        crowd = Crowd(server.port, [f"127.0.1.{i + 1}" for i in range(addresses)], HALF[half])
        times = []
        for _ in range(10):
            crowd.grow(COUNT // 10)
            times += [seconds_of(server, "GET", "/health"), seconds_of(server, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})]
        held = crowd.left()
        times += [seconds_of(server, "GET", "/health") for _ in range(20)]
        crowd.close()
        print(f"{COUNT} connections that sent {half}, from {addresses}: {held} kept; others answered in at most {max(times):.3f} s")
        assert max(times) < MOST_SECONDS
        assert held <= 4096 // 2 + 10, "half of the places are for those that ask"


def test_the_crowds_own_network_gives_way_first():
    with serving("--max-connections", 64) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60, source_address=("127.0.2.1", 0)) as slow:
            slow.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n")
            crowd = Crowd(server.port, ["127.0.1.1"], HALF["a head"])
            crowd.grow(300)
            slow.sendall(b"Connection: close\r\n\r\n")
            assert slow.recv(1 << 16).startswith(b"HTTP/1.1 200"), "it came first and is slow, and from somewhere else"
            crowd.close()


def test_a_head_has_five_seconds_while_many_wait():
    with serving("--max-connections", 40) as server:
        crowd = Crowd(server.port, ["127.0.1.1"], HALF["a head"])
        crowd.grow(15)  # more than a quarter of the places, less than half
        begin = time.monotonic()
        assert crowd.left() == 15
        while crowd.left() > 10 and time.monotonic() - begin < 60:
            time.sleep(0.1)
        assert crowd.left() <= 10 and 4 < time.monotonic() - begin < 20
        crowd.close()


def test_more_connections_than_descriptors_are_refused_at_the_start():
    from watched_server import Server
    server = Server("--max-connections", 1000, descriptors=512, ready=False)
    assert server.process.wait(timeout=60) == 2
    assert "--max-connections" in server.log() and "448" in server.log()
    server.process.stdout.close()
