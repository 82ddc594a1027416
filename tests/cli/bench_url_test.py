"""nibble bench --url against nibble's server, and against servers that answer strangely."""
import contextlib
import json
import signal
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from nibble_program import BINARY, environment, run

MODELS = {"object": "list", "data": [{"id": "other"}]}
CHUNK = {"choices": [{"index": 0, "text": "word", "finish_reason": None}]}


@contextlib.contextmanager
def serving(*arguments):
    process = subprocess.Popen([str(part) for part in (BINARY, "serve", "demo", "--port", 0, *arguments)], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True, env=environment())
    try:
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


@contextlib.contextmanager
def answering(answer):
    """A server whose every POST is answered by answer(handler, body)."""
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.say(200, json.dumps(MODELS))

        def do_POST(self):
            answer(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def say(self, status, body, kind="application/json"):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def bench(url, *arguments):
    code, out, err = run("bench", "--url", url, "--json", *arguments)
    return code, json.loads(out) if out else None, err


def events(*chunks, done=True):
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n" * done


def test_closed_and_open_loops_count_what_the_server_counts():
    with serving("--api-key", "secret") as url:
        code, report, err = bench(url, "--api-key", "secret", "--input-len", 24, "--output-len", 12, "--concurrency", "1,3", "--requests", 6)
        assert code == 0, err
        assert report["model"] == "demo" and [level["concurrency"] for level in report["runs"]] == [1, 3]
        for level in report["runs"]:
            assert level["completed"] == level["requests"] == 6 and level["errors"] == {}
            assert level["output_tokens"] == 72 and 6 * 20 <= level["prompt_tokens"] <= 6 * 28
            assert 0 < level["ttft_s"]["p50"] <= level["ttft_s"]["p99"] <= level["request_s"]["p99"] and level["itl_s"]["p50"] > 0
        code, report, err = bench(url + "/v1/", "--api-key", "secret", "--input-len", 24, "--output-len", 4, "--rate", 200, "--requests", 5, "--chat")
        assert code == 0, err
        [level] = report["runs"]
        assert level["completed"] == 5 and level["rate"] == 200 and report["endpoint"] == "/v1/chat/completions"

        code, out, err = run("bench", "--url", url, "--output-len", 4)
        assert (code, out) == (2, "") and "401" in err and "--api-key" in err
        code, out, err = run("bench", "nosuch", "--url", url, "--api-key", "secret")
        assert (code, out) == (2, "") and "404" in err and "demo" in err
        code, out, err = run("bench", "--url", url, "--api-key", "secret", "--input-len", 5000)
        assert (code, out) == (2, "") and "context" in err
        code, out, err = run("bench", "--url", url, "--api-key", "secret", "--input-len", 8, "--output-len", 3, "--requests", 2, "--concurrency", 2)
        assert code == 0 and "in flight" in out and err == ""


def test_what_is_no_server_of_the_api_is_said_in_one_line():
    code, out, err = run("bench", "--url", "http://127.0.0.1:1")
    assert (code, out) == (1, "") and "connection refused" in err
    with answering(lambda handler, body: handler.say(200, "<html>", "text/html")) as url:
        code, out, err = run("bench", "--url", url)
        assert (code, out) == (1, "") and "no JSON" in err and err.count("\n") == 1
    for arguments in (("--url", "ftp://x"), ("--url", "https://x"), ("--rate", 3), (), ("--url", "http://x", "--depth", 5)):
        code, out, err = run("bench", *arguments)
        assert (code, out) == (2, "") and err.startswith("error: "), arguments


def test_a_server_that_counts_nothing_is_measured_by_its_chunks():
    def answer(handler, body):
        handler.say(200, events(CHUNK, CHUNK, CHUNK) if body["stream"] else "{}")

    with answering(answer) as url:
        code, report, err = bench(url, "--requests", 4, "--concurrency", 2, "--input-len", 3)
    assert code == 0, err
    assert report["model"] == "other"
    [level] = report["runs"]
    assert level["output_tokens"] == level["chunks"] == 12 and level["prompt_tokens"] == 0


def test_failures_are_counted_by_kind_and_the_rest_is_measured():
    lock, asked = threading.Lock(), [0]
    answers = [
        lambda handler: handler.say(429, json.dumps({"error": {"message": "full", "code": "queue_full"}})),
        lambda handler: handler.say(503, "oops"),
        lambda handler: handler.say(200, events(CHUNK, done=False)),
        lambda handler: handler.say(200, events(CHUNK, {"error": {"message": "it broke"}})),
        lambda handler: handler.say(200, events()),
        lambda handler: handler.connection.close(),
        lambda handler: handler.say(200, events(CHUNK, CHUNK, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})),
    ]

    def answer(handler, body):
        if not body["stream"]:
            return handler.say(200, "{}")
        with lock:
            asked[0] += 1
            number = asked[0] - 1
        with contextlib.suppress(OSError, ValueError):
            answers[number](handler)

    with answering(answer) as url:
        code, report, err = bench(url, "--requests", len(answers), "--concurrency", 1)
    assert code == 0, err
    [level] = report["runs"]
    assert level["completed"] == 1 and level["output_tokens"] == 2 and level["prompt_tokens"] == 3
    assert sum(level["errors"].values()) == 6 and len(level["errors"]) == 6
    for kind in ("status 429 queue_full", "status 503", "the stream ended without its [DONE]", "the stream brought no text"):
        assert level["errors"][kind] == 1
    assert any("it broke" in kind for kind in level["errors"])


def test_nothing_answered_is_a_failure():
    def answer(handler, body):
        handler.say(500 if body["stream"] else 200, "{}")

    with answering(answer) as url:
        code, report, err = bench(url, "--requests", 2, "--concurrency", 2)
    assert code == 1 and report["runs"][0]["errors"] == {"status 500": 2} and "status 500" in err
