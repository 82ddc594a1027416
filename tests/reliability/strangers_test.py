"""Who may ask: keys, names, pages of strangers, and text that wants to be more than text."""
import json
import re
import ssl
import socket
import urllib.request

import pytest

from nibble_program import ROOT
from watched_server import PATIENCE, Answer, Server, eventually, listening_ports, read_all, request_bytes, serving, together

TLS = ROOT / "tests/data/tls"
ASK = {"prompt": "a", "max_tokens": 1}
HOSTILE = ["\r\nX-Injected: yes", "a\nb", "\x1b[2J\x1b]0;owned\x07", "\x00", "\u202e", "'\"\\", "x" * 1_000_000]


@pytest.fixture(scope="module")
def locked():
    server = Server("--api-key", "secret", "--served-model-name", 'a"b\\c\nd', ready=False)
    server.port = int(server.process.stdout.readline().strip().rsplit(":", 1)[1])
    yield server
    assert server.stop() == 0


def test_every_path_but_probes_and_the_pages_own_files_asks_for_the_key(locked):
    key = {"Authorization": "Bearer secret"}
    paths = json.loads(locked.ask("GET", "/openapi.json", **key).body)["paths"]
    assert {"/v1/chat/completions", "/metrics", "/health"} <= set(paths)
    asked = [(method.upper(), path.replace("{model}", "x")) for path, methods in paths.items() for method in methods]
    asked += [("GET", path) for path in ("/nothing", "/index.html/../metrics", "/v2/embed", "/v1/../metrics", "//metrics", "/health/", "/health/x",
                                         "/HEALTH", "/%2568ealth", "/health%2f", "/%6detrics", "/metrics?path=/health", "/openapi.json?x=/health")]
    asked += [("OPTIONS", "/v1/models"), ("DELETE", "/v1/models"), ("POST", "/nothing")]
    for method, path in asked:
        for given in ({}, {"Authorization": "Bearer wrong!"}, {"Authorization": "Bearer secre"}, {"Authorization": "Bearer secret2"},
                      {"Authorization": "secret"}, {"Authorization": "Bearer"}, {"Authorization": "Bearer  secret"},
                      {"Host": "localhost", "X-Api-Key": "secret2"}, {"Authorization": "Bearer wrong!", "X-Api-Key": "secret"}):
            status = locked.ask(method, path, {} if method == "POST" else None, **given).status
            assert status == (200 if path in ("/health", "/ready") and method == "GET" else 401), (method, path, given)
        for right in (key, {"X-Api-Key": "secret"}):
            assert locked.ask(method, path, {} if method == "POST" else None, **right).status != 401, (method, path, right)
    assert locked.ask("GET", "/%68ealth").status == 200, "the same path, spelled otherwise"


def test_a_host_that_looks_like_another_path_opens_none(locked):
    for host in ("x/openapi.json?x=", "localhost/health", "localhost#/health", "localhost?/health"):
        assert locked.ask("GET", "/metrics", Host=host).status == 400


def test_labels_of_metrics_are_escaped(locked):
    answer = locked.ask("GET", "/metrics", Authorization="Bearer secret").body.decode()
    assert r'model_name="a\"b\\c\nd"' in answer
    from prometheus_client.parser import text_string_to_metric_families
    families = {family.name: family for family in text_string_to_metric_families(answer)}
    assert families["vllm:num_requests_running"].samples[0].labels["model_name"] == 'a"b\\c\nd'


def test_a_page_whose_name_points_here_is_refused(server):
    for host in ("evil.com", "evil.com:8000", "localhost.evil.com", "127.0.0.1.evil.com", "evil.com.", "1.evil"):
        answer = server.ask("GET", "/v1/models", Host=host)
        assert answer.status == 403 and answer.json()["error"]["code"] == "host_not_allowed", host
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8000", "app.localhost", "192.168.1.5", "myserver"):
        assert server.ask("GET", "/v1/models", Host=host).status == 200, host
    with serving("--allowed-hosts", "models.example,other.example") as named:
        assert named.ask("GET", "/health", Host="Models.Example:80").status == 200
        assert named.ask("GET", "/health", Host="evil.com").status == 403


def test_what_a_form_can_send_is_refused(server):
    data = json.dumps(ASK).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", None, "application/jsonx"):
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
            assert server.ask("POST", path, data, **{"Content-Type": kind, "Origin": "http://evil.com"}).status == 415, (path, kind)
    assert server.ask("POST", "/v1/completions", data, **{"Content-Type": 'Application/JSON; charset="utf-8"'}).status == 200


def test_no_page_reads_answers_unless_it_is_named(server):
    def preflight(asked, origin):
        return asked.ask("OPTIONS", "/v1/chat/completions", Origin=origin, **{"Access-Control-Request-Method": "POST"})

    answer = preflight(server, "http://evil.com")
    assert answer.status != 204 and not any(name.startswith("access-control") for name in answer.headers)
    assert "access-control-allow-origin" not in server.ask("GET", "/v1/models", Origin="http://evil.com").headers
    with serving("--allow-origins", "https://a.example,https://b.example") as named:
        answer = preflight(named, "https://b.example")
        assert answer.status == 204 and answer.headers["access-control-allow-origin"] == "https://b.example" and answer.body == b""
        assert "authorization" in answer.headers["access-control-allow-headers"]
        answer = named.ask("OPTIONS", "/v1/chat/completions", Origin="https://a.example",
                           **{"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-os"})
        assert answer.headers["access-control-allow-headers"] == "authorization, x-stainless-os"
        assert named.ask("GET", "/v1/models", Origin="https://a.example").headers["access-control-allow-origin"] == "https://a.example"
        for origin in ("https://evil.com", "https://a.example.evil.com", "null", "https://a.exampl"):
            assert "access-control-allow-origin" not in named.ask("GET", "/v1/models", Origin=origin).headers
            assert preflight(named, origin).status != 204


def test_nothing_is_fetched_and_no_file_is_read_for_a_client(server):
    def content(url):
        return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}

    with server.survives():
        for url in ("http://169.254.169.254/latest", "file:///etc/passwd", "http://127.0.0.1:1/", "ftp://a", "data:image/png;base64,AAAA"):
            assert server.ask("POST", "/v1/chat/completions", content(url)).status == 400
        for model in ("../../etc/passwd", "/etc/passwd", "http://169.254.169.254/"):
            assert server.ask("POST", "/v1/completions", ASK | {"model": model}).status == 404
        schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "http://127.0.0.1:1/schema"}}}
        assert server.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "response_format": schema}).status == 400
        _, connected = listening_ports([server.process.pid, *server.children()])
        assert all(port == server.port for port, _ in connected), "a connection of the server's own making"


def test_the_port_is_the_only_one_and_on_loopback(server):
    listening, _ = listening_ports([server.process.pid, *server.children()])
    assert listening == {("0100007F", server.port)}


def test_errors_say_little_of_what_was_sent_and_never_break_a_header(server):
    with server.survives():
        for text in HOSTILE:
            for body in (ASK | {"model": text}, ASK | {text: 1}, ASK | {"temperature": text}, ASK | {"stop": [text, 1]},
                         {"messages": [{"role": text, "content": "a"}]}):
                path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
                answer = server.ask("POST", path, body)
                assert answer.status in (200, 400, 404) and "x-injected" not in answer.headers
                if answer.status != 200:
                    assert len(answer.json()["error"]["message"].encode()) <= 1024


def test_each_request_is_one_line_in_the_log_whatever_it_holds():
    with serving("--log-json") as server:
        eventually(lambda: "/v1/completions" in server.log())  # what the start asked
        before = len(server.log().splitlines())
        for i, text in enumerate(HOSTILE):
            server.ask("POST", "/v1/completions", ASK | {"model": text, "user": text})
            server.raw(b"GET /\xff\x1b[2J%d HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-Id: \xc2\x9b31m\r\n\r\n" % i)
            server.ask("GET", "/a%0d%0ainfo", **{"X-Request-Id": "mine"})

        lines = eventually(lambda: (lambda lines: len(lines) >= 3 * len(HOSTILE) and lines)(server.log().splitlines()[before:]))
        assert len(lines) == 3 * len(HOSTILE)
        for line in lines:
            assert all(" " <= c <= "~" for c in line)
            assert json.loads(line)["message"] in ("request", "request refused")


def test_ids_of_clients_are_echoed_and_name_nothing(server):
    with server.survives():
        def ask(i):
            return server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 30, "seed": 3, "ignore_eos": True},
                              **{"X-Request-Id": "a" * (1 + i % 2)})

        answers = together(8, ask)  # the same id, and one that begins with it
        assert {answer.headers["x-request-id"] for answer in answers} == {"a", "aa"}
        assert len({answer.json()["id"] for answer in answers}) == 8
        assert len({answer.json()["choices"][0]["text"] for answer in answers}) == 1
        assert all(re.fullmatch(r"cmpl-[0-9a-f]{32}", answer.json()["id"]) for answer in answers)
        for path in ("/v1/responses/a", "/v1/responses/" + answers[0].json()["id"], "/v1/chat/completions/a"):
            assert server.ask("GET", path).status in (404, 405)
        for bad in ("x" * 1000, "a b", ""):
            assert server.ask("GET", "/version", **{"X-Request-Id": bad}).headers["x-request-id"].startswith("req-")


def test_a_trace_is_continued_and_a_broken_one_ignored(server):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = server.ask("GET", "/version", traceparent=trace)
    assert answer.headers["traceparent"] == trace
    assert re.fullmatch(r"00-0af7651916cd43dd8448eb211c80319c-[0-9a-f]{16}-01", answer.headers["traceresponse"])
    assert "b7ad6b7169203331" not in answer.headers["traceresponse"]
    eventually(lambda: 'trace_id="0af7651916cd43dd8448eb211c80319c" parent_id="b7ad6b7169203331"' in server.log())
    for broken in ("00-0-0-0", "ff" + trace[2:], trace.upper(), trace + "-x", "00-" + "0" * 32 + trace[35:]):
        answer = server.ask("GET", "/version", traceparent=broken)
        assert answer.status == 200 and "traceparent" not in answer.headers, broken


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_tls_serves_streams_and_refuses_what_is_no_tls():
    with serving("--ssl-certfile", TLS / "localhost.pem", "--ssl-keyfile", TLS / "localhost.key", ready=False) as server:
        url = server.process.stdout.readline().strip()
        assert url.startswith("https://127.0.0.1:")
        server.port = int(url.rsplit(":", 1)[1])
        trust = ssl.create_default_context(cafile=TLS / "localhost.pem")
        body = {"prompt": "Once", "max_tokens": 50, "ignore_eos": True}

        def ask(i):
            asked = urllib.request.Request(f"https://localhost:{server.port}/v1/completions", json.dumps(body | {"stream": i % 2 == 0}).encode(),
                                           {"Content-Type": "application/json"})
            with urllib.request.urlopen(asked, timeout=PATIENCE, context=trust) as answer:
                data = answer.read()
            if i % 2 == 1:
                return json.loads(data)["choices"][0]["text"]
            events = [json.loads(event[6:]) for event in data.decode().split("\n\n") if event.startswith("data: {")]
            return "".join(event["choices"][0]["text"] for event in events)

        assert len(set(together(6, ask))) == 1
        assert not server.raw(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").startswith(b"HTTP/1.1 200")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("DEFAULT@SECLEVEL=0")  # else this side would refuse
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", server.port)) as plain:
            old.wrap_socket(plain)
        for _ in range(20):  # handshakes that end half way
            with socket.create_connection(("127.0.0.1", server.port)) as plain:
                plain.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")


def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(tmp_path):
    (tmp_path / "empty").touch()
    for arguments in (["--ssl-certfile", TLS / "localhost.pem"], ["--ssl-certfile", tmp_path / "none", "--ssl-keyfile", TLS / "localhost.key"],
                      ["--ssl-certfile", TLS / "localhost.pem", "--ssl-keyfile", tmp_path / "empty"]):
        server = Server(*arguments, ready=False)
        assert server.process.wait(timeout=60) == 2 and "--ssl-" in server.log()
        server.process.stdout.close()


def test_binding_to_strangers_without_a_key_is_warned_of():
    with serving("--host", "0.0.0.0") as server:
        assert server.log().count("warning:") == 1 and "--api-key" in server.log()


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_without_a_key_host_is_checked_whatever_address_is_bound(address):
    with serving("--host", address) as server:
        for host in ("evil.com", "evil.com:80", "localhost.evil.com"):
            assert server.ask("GET", "/v1/models", Host=host).status == 403, host
        names = ["127.0.0.1", "192.168.1.5:8000", "[fe80::1]", "localhost", "nibble", socket.gethostname(), socket.gethostname() + ".local:80"]
        for host in names:
            assert server.ask("GET", "/v1/models", Host=host).status == 200, host
    with serving("--host", address, "--allowed-hosts", "*") as server:
        assert server.ask("GET", "/v1/models", Host="evil.com").status == 200
    with serving("--host", address, "--allowed-hosts", "*.svc.cluster.local") as server:
        assert server.ask("GET", "/v1/models", Host="nibble.default.svc.cluster.local").status == 200
        assert server.ask("GET", "/v1/models", Host="evil.com").status == 403
    server = Server("--host", address, "--api-key", "secret", ready=False)  # whoever has the key is no page of a stranger's
    server.port = int(server.process.stdout.readline().strip().rsplit(":", 1)[1])
    assert server.ask("GET", "/v1/models", Host="evil.com", Authorization="Bearer secret").status == 200
    assert server.stop() == 0


def test_every_get_is_answered_to_head_without_a_body(server):
    paths = json.loads(server.ask("GET", "/openapi.json").body)["paths"]
    asked = [path.replace("{model}", "demo") for path, methods in paths.items() if "get" in methods] + ["/", "/app.js", "/v1/models/none", "/nothing"]
    assert len(asked) > 10
    for path in asked:
        get, head = server.ask("GET", path), server.ask("HEAD", path)
        assert (head.status, head.body) == (get.status, b""), path
        assert head.headers["content-type"] == get.headers["content-type"], path
        if path not in ("/metrics", "/live"):  # which change
            assert head.headers["content-length"] == get.headers["content-length"], path


def test_an_origin_that_is_none_is_refused_at_the_start():
    for origin in ("a.example", "https://a.example/", "https://", "https://a.example/x"):
        server = Server("--allow-origins", origin, ready=False)
        assert server.process.wait(timeout=60) == 2 and "--allow-origins" in server.log()
        server.process.stdout.close()
