"""Where one request ends and who may ask: many probes of each."""
import itertools
import json
import random
import re
import time

import pytest

from framing_probes import BEHIND, ENDING, REFUSED, SERVED, UNFINISHED
from watched_server import Server, counts

WEEKDAYS = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
DATE = re.compile(rf"({WEEKDAYS}), \d\d (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d{{4}} \d\d:\d\d:\d\d GMT")


def answers(data, method=b""):
    """[(status, fields, body)] of all the answers in `data`, by their lengths; what is left over must be nothing."""
    found = []
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        assert end and re.match(r"HTTP/1\.1 \d\d\d ", lines[0]), head[:200]
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        status = int(lines[0].split()[1])
        assert status == 100 or DATE.fullmatch(fields.get("date","")), head
        size = 0 if status in (100, 204, 304) or (method == b"HEAD" and not found) else int(fields["content-length"])
        assert size <= len(data), head
        found.append((status, fields, data[:size]))
        data = data[size:]
    return [answer for answer in found if answer[0] != 100]


def ask(server, data):
    """What comes back for a request and one behind it."""
    return answers(server.raw(data + BEHIND, half_close=True), data.lstrip().split(b" ")[0])


def test_what_two_readers_could_understand_differently_is_refused_and_closes(server):
    with server.survives():
        for name, (data, statuses) in REFUSED.items():
            got = answers(server.raw(data + BEHIND))
            assert len(got) == 1, (name, got)
            [(status, fields, body)] = got
            assert status in statuses, (name, status)
            assert fields["connection"] == "close" and set(json.loads(body)["error"]) == {"message", "type", "param", "code"}, name
        print(f"{len(REFUSED)} probes refused")


def test_what_is_unusual_and_clear_is_served_and_so_is_what_follows(server):
    with server.survives():
        for name, (data, statuses) in SERVED.items():
            got = ask(server, data)
            assert len(got) == 2 and got[0][0] in statuses and got[1][0] == 200 and b"version" in got[1][2], (name, got)
            if got[0][0] == 405:
                assert got[0][1]["allow"], name
        for name, (data, statuses) in ENDING.items():
            got = ask(server, data)
            assert len(got) == 1 and got[0][0] in statuses and got[0][1]["connection"] == "close", (name, got)
            assert b"100 Continue" not in server.raw(data), name
        print(f"{len(SERVED) + len(ENDING)} probes served")


def test_half_a_request_is_never_answered_as_a_whole_one(impatient):
    with impatient.survives():
        for name, data in UNFINISHED.items():
            assert impatient.raw(data, half_close=True) == b"", name
        begin = time.monotonic()
        for name, data in UNFINISHED.items():
            if data:
                assert [status for status, *_ in answers(impatient.raw(data))] == [408], name
        assert time.monotonic() - begin < 3 * len(UNFINISHED), "a second is what half a minute is to others"


METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "BREW")
ROUTES = ("/metrics", "/v1/models", "/v1/models/demo", "/v1/chat/completions", "/plan", "/openapi.json", "/live", "/version", "/nothing")
SPELLINGS = ("{0}", "{0}/", "/{0}", "/.{0}", "/%2e{0}", "{0}?x=/health", "{0}?/health", "{0};/health", "{0}%00/health", "{0}%3f/health", "{0}/../health",
             "/health/..{0}", "/health/%2e%2e{0}", "/health;{0}", "/health%2f..{0}", "/index.html/..{0}", "http://localhost{0}", "http://localhost/health/..{0}",
             "/health%0d%0a{0}", "{0}\\..\\health")
OPEN = ("/health", "/ready", "/health?x", "http://localhost/health", "/", "/index.html")  # and what of the page's files is not here
HOSTS = {"localhost": None, "127.0.0.1:1": None, "[::1]": None, "x/openapi.json?x=": 400, "localhost/health": 400, "localhost#/health": 400,
         "localhost?/health": 400, "health@localhost": 400, "evil.com": 403, "localhost.evil.com:80": 403}
KEYS = {"": False, "Authorization: Bearer wrong!": False, "Authorization: Bearer secre": False, "Authorization: Bearer secret2": False,
        "Authorization: Bearer secretsecret": False, "Authorization: Bearer": False, "Authorization: Bearer  x secret": False, "Authorization: secret": False,
        "Authorization: Basic OnNlY3JldA==": False, "Authorization: Bearer SECRET": False, "Authorization: Bearer \"secret\"": False,
        "Authorization: Bearer secret, Bearer secret": False, "Authorization: Bearer x\r\nAuthorization: Bearer secret": False,
        "Authorization: Bearer secret\r\nAuthorization: Bearer secret": False, "X-Api-Key: secret2": False, "X-Api-Key: secret\r\nX-Api-Key: secret": False, "Authorization: Bearer x\r\nX-Api-Key: secret": False, "Proxy-Authorization: Bearer secret": False,
        "Cookie: api_key=secret": False, "X-Original-URL: /health": False, "X-Forwarded-For: 127.0.0.1": False,
        "Authorization: Bearer secret": True, "authorization:bearer secret": True, "X-Api-Key: secret": True}


@pytest.fixture(scope="module")
def locked():
    server = Server("--api-key", "secret", ready=False)
    server.port = int(server.process.stdout.readline().strip().rsplit(":", 1)[1])
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("count", counts(1500, None))
def test_no_spelling_of_a_path_or_a_host_takes_the_place_of_the_key(locked, count):
    targets = [spelling.format(route) for route in ROUTES for spelling in SPELLINGS] + list(OPEN)
    probes = list(itertools.product(METHODS, targets, HOSTS.items(), KEYS.items()))
    if count:
        probes = random.Random(5).sample(probes, count)
    connection, statuses = None, {}
    for method, target, (host, refusal), (key, right) in probes:
        if connection is None:
            connection = locked.connect()
            stream = connection.makefile("rb")
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *([key] if key else []), "", ""]
        connection.sendall("\r\n".join(lines).encode())
        head = iter(lambda: stream.readline(), b"\r\n")
        status = int(next(head).split()[1])
        fields = dict(line.decode().strip().lower().split(": ", 1) for line in head)
        stream.read(0 if method == "HEAD" and status != 400 else int(fields.get("content-length", 0)))
        # An absolute target names the host itself.
        expected = 400 if "%0" in target else refusal if refusal == 400 or not target.startswith("http") else None
        if expected or not (right or target in OPEN):
            assert status == (expected or 401), (method, target, host, key, status)
        else:
            assert status not in (400, 401, 403) and status < 500, (method, target, host, key, status)
        statuses[status] = statuses.get(status, 0) + 1
        if fields["connection"] == "close":
            stream.close()
            connection.close()
            connection = None
    if connection:
        stream.close()
        connection.close()
    print(f"{len(probes)} probes: {statuses}")
