"""What requests hold is bounded by what they hold, not by how they are written."""
import concurrent.futures
import http.client
import re
from pathlib import Path

import pytest

from watched_server import CONTROL, SANITIZED, serving

BODY = 4 << 20
MOST = 1 << 30
SHARE = 10 if SANITIZED else 1  # of the clients: with sanitizers nothing is measured, and each takes ten times as long


def resident(server):
    """Bytes of the process with the model that are in memory now."""
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{server.engine()}/status").read_text())[1]) << 10


def body_of(kind):
    """About 4 MB of JSON whose values take far more memory than their text, or are of many kinds."""
    small = {"numbers": b"1,", "nested": b"[],", "texts": b'"",', "objects": b'{"a":1},'}[kind]
    filler = small * ((BODY - 200) // len(small))
    start = b'{"prompt":"Once upon a time","max_tokens":2,"seed":7,"filler":['
    return start + filler.rstrip(b",") + b"]}"


def ask(server, data):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    try:
        connection.request("POST", "/v1/completions", data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers.get("Retry-After")
    except (ConnectionResetError, BrokenPipeError):
        return None, None  # refused while it was still sending
    finally:
        connection.close()


@pytest.mark.long
def test_two_hundred_bodies_of_small_values_stay_under_a_gigabyte():
    with serving("--client-timeout", 300) as server:  # 800 MB take their time on a machine that does other work
        before = server.ask("POST", "/v1/completions", CONTROL).json()["choices"]
        for kind, clients in (("numbers", 200), ("nested", 60), ("texts", 60), ("objects", 60)):
            data = body_of(kind)
            with concurrent.futures.ThreadPoolExecutor(clients // SHARE) as pool:
                answers = [pool.submit(ask, server, data) for _ in range(clients // SHARE)]
                most = 0
                while not all(answer.done() for answer in answers):
                    most = max(most, resident(server))
                    concurrent.futures.wait(answers, timeout=0.02)
            statuses = [answer.result()[0] for answer in answers]
            assert set(statuses) <= {200, 503, None}, set(statuses)
            assert statuses.count(200) >= 1
            print(kind, statuses.count(200), statuses.count(503), statuses.count(None), most >> 20, "MiB")
            assert SANITIZED or most < MOST, (kind, most)
        assert server.ask("POST", "/v1/completions", CONTROL).json()["choices"] == before


def test_waiting_requests_hold_their_tokens_and_not_their_bodies():
    """Requests that run and wait: 4 MB each as they came, a few tokens as they are held."""
    with serving("--max-num-seqs", 2, "--client-timeout", 300) as server:
        idle = resident(server)
        data = body_of("numbers").replace(b'"max_tokens":2', b'"max_tokens":200,"ignore_eos":true')
        with concurrent.futures.ThreadPoolExecutor(40 // SHARE) as pool:
            waiting = [pool.submit(ask, server, data) for _ in range(40 // SHARE)]
            settled = []
            while not all(answer.done() for answer in waiting):
                settled.append(resident(server))
                concurrent.futures.wait(waiting, timeout=0.05)
        assert {answer.result()[0] for answer in waiting} <= {200, 503, None}
        assert SANITIZED or min(settled[len(settled) // 2:]) - idle < 200 << 20, (idle, settled[-20:])
