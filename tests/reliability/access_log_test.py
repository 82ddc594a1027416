"""What the log says of a request, and what keeps a silent stream open."""
import contextlib
import json
import time

from watched_server import PATIENCE, SANITIZED, Answer, eventually, read_all, request_bytes, serving

LONG = {"prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True, "stream": True}


def lines(server, path):
    logged = [json.loads(line) for line in server.log().splitlines() if line.startswith("{") and line.endswith("}")]  # not what the start prints
    return [line for line in logged if line.get("path") == path]


def test_the_access_line_tells_who_asked_for_what_and_how_it_ended():
    with serving("--log-json") as server:
        before = len(eventually(lambda: lines(server, "/v1/completions")))  # the control request
        body = {"prompt": "Once upon a time " * 8, "max_tokens": 5, "ignore_eos": True}
        for more in ({}, {"stream": True}):
            assert server.ask("POST", "/v1/completions", body | more).status == 200
        first, second = eventually(lambda: len(lines(server, "/v1/completions")) == before + 2 and lines(server, "/v1/completions")[before:])
        for line in (first, second):
            assert (line["client"], line["model"], line["status"], line["finish_reason"]) == ("127.0.0.1", "demo", 200, "length")
            assert line["completion_tokens"] == 5 and line["prompt_tokens"] > 16
            assert 0 < line["first_token_seconds"] <= line["seconds"]
        assert "format" not in first
        assert server.ask("POST", "/v1/completions", body | {"ignore_eos": False, "guided_choice": ["yes", "no"]}).status == 200
        assert eventually(lambda: lines(server, "/v1/completions")[before + 2:])[0]["format"] == "choice"
        before += 1
        assert first["cached_tokens"] == 0 and second["cached_tokens"] >= 16
        server.ask("POST", "/v1/completions", body | {"temperature": -1})
        refused = eventually(lambda: lines(server, "/v1/completions")[before + 2:])[0]
        assert refused["status"] == 400 and "model" not in refused and refused["client"] == "127.0.0.1"


def test_probes_and_scrapes_are_logged_for_debuggers_only():
    for level, expected in (("info", 0), ("debug", 1)):
        with serving("--log-json", "--log-level", level) as server:
            for path in ("/health", "/ready", "/metrics", "/live"):
                assert server.ask("GET", path).status == 200
                time.sleep(0.05)
                assert len(lines(server, path)) == expected, (level, path)


def test_a_stream_that_failed_is_logged_as_what_it_was():
    # Less than eight such answers take, and more than the control request does.
    with serving("--log-json", "--request-timeout", 1 if not SANITIZED else 30) as server:
        answer = server.ask("POST", "/v1/completions", LONG | {"n": 8})
        assert answer.status == 200 and answer.events()[-1]["error"]["code"] == "timeout"
        [line] = eventually(lambda: [line for line in lines(server, "/v1/completions") if line["status"] != 200])
        assert line["status"] == 504 and line["error"] and line["level"] == "warning" and line["completion_tokens"] > 0


def test_a_client_that_goes_leaves_how_far_it_got():
    with serving("--log-json") as server:
        with server.connect() as connection:
            connection.sendall(request_bytes("POST", "/v1/completions", LONG))
            read = b""
            while b"\ndata: " not in read:  # the first token, which a slow program sends long after the headers
                read += connection.recv(1000)
        [line] = eventually(lambda: [line for line in lines(server, "/v1/completions") if line["status"] == 499])
        assert line["completion_tokens"] >= 1 and line["first_token_seconds"] > 0 and "finish_reason" not in line


def bytes_of_a_stream_that_waits(seconds, *options):
    """What a stream says while another one has the only place, for that long; and what it says then, when the other has gone."""
    with serving("--max-num-seqs", 1, *options) as server:
        with server.connect() as first, server.connect() as second:
            first.sendall(request_bytes("POST", "/v1/completions", LONG | {"n": 64, "stream": False}))  # an unread stream is dropped
            eventually(lambda: server.metrics()["vllm:num_requests_running",] == 1)
            second.sendall(request_bytes("POST", "/v1/completions", LONG | {"max_tokens": 3}, Connection="close"))
            waiting, end = b"", time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                second.settimeout(left)
                with contextlib.suppress(TimeoutError):
                    waiting += second.recv(1000)
            second.settimeout(PATIENCE)
            first.close()
            return waiting, read_all(second)


def test_a_stream_that_waits_says_that_it_is_alive():
    waiting, rest = bytes_of_a_stream_that_waits(5, "--sse-keep-alive", 1)
    assert b"data: " not in waiting, "it waits"
    assert 2 <= waiting.count(b": keep-alive\n\n") <= 5
    events = Answer(waiting + rest).events()
    assert events[-1] is None and len(events) >= 3


def test_comments_can_be_turned_off():
    waiting, rest = bytes_of_a_stream_that_waits(3, "--sse-keep-alive", 0)
    assert waiting.startswith(b"HTTP/1.1 200") and waiting.endswith(b"\r\n\r\n") and b"keep-alive\n\n" not in rest
