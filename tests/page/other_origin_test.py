"""Scripts of pages from other origins, in Chromium, with the headers that openai-node sends from a browser."""
import contextlib
import http.server
import json
import threading

import pytest

from page_actions import serving

# openai-node 6 in a browser (dangerouslyAllowBrowser).
HEADERS = {"Accept": "application/json", "Content-Type": "application/json", "Authorization": "Bearer secret", "X-Stainless-Lang": "js",
           "X-Stainless-Package-Version": "6.9.1", "X-Stainless-OS": "Unknown", "X-Stainless-Arch": "unknown", "X-Stainless-Runtime": "browser:chrome",
           "X-Stainless-Runtime-Version": "131.0.0", "X-Stainless-Retry-Count": "0", "X-Stainless-Timeout": "600", "X-Stainless-Helper-Method": "stream"}
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Tell me a story"}], "max_tokens": 8}


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        data = b"<!doctype html><title>another origin</title>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def origin():
    """A page's origin that is not the server's."""
    pages = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{pages.server_address[1]}"
    finally:
        pages.shutdown()
        pages.server_close()


def fetched(browser, url, path, body=None, method="POST", **headers):
    """What a script reads of the answer; the error's name where it may not."""
    options = {"method": method, "headers": {key: value for key, value in (HEADERS | headers).items() if value is not None}}
    if body is not None:
        options["body"] = body if isinstance(body, str) else json.dumps(body)
    return browser.run(f"""(async () => {{
        try {{
            const answer = await fetch({json.dumps(url + path)}, {json.dumps(options)});
            const read = (name) => answer.headers.get(name);
            return {{status: answer.status, id: read("x-request-id"), ignored: read("x-nibble-ignored"), retry: read("x-should-retry"),
                     text: await answer.text()}};
        }} catch (error) {{ return {{status: 0, text: error.name}}; }}
    }})()""")


@pytest.fixture(scope="module")
def two_origins(browser):
    with origin() as allowed, origin() as other, serving("--api-key", "secret", "--allow-origins", allowed, "--max-body-bytes", 10_000) as url:
        yield allowed, other, url


def visit(browser, address):
    browser.handlers = {}
    browser.call("Page.navigate", url=address)
    browser.wait(f"location.href === '{address}/' && document.title === 'another origin'")


def test_openai_node_in_a_page_of_an_allowed_origin_is_served(browser, two_origins):
    allowed, _, url = two_origins
    visit(browser, allowed)
    answer = fetched(browser, url, "/v1/chat/completions", CHAT | {"zebra": 1})
    assert answer["status"] == 200 and json.loads(answer["text"])["choices"][0]["message"]["content"], answer
    assert answer["id"].startswith("req-") and answer["ignored"] == "zebra"
    streamed = fetched(browser, url, "/v1/chat/completions", CHAT | {"stream": True}, **{"X-Request-Id": "mine"})
    assert streamed["text"].endswith("data: [DONE]\n\n") and streamed["id"] == "mine"
    assert fetched(browser, url, "/v1/models", method="GET")["status"] == 200


def test_the_script_reads_every_refusal_and_its_id(browser, two_origins):
    allowed, _, url = two_origins
    visit(browser, allowed)
    refusals = [(401, fetched(browser, url, "/v1/chat/completions", CHAT, Authorization="Bearer wrong")),
                (401, fetched(browser, url, "/v1/models", method="GET", Authorization=None)),
                (404, fetched(browser, url, "/v1/chat/completions", CHAT | {"model": "other"})),
                (400, fetched(browser, url, "/v1/chat/completions", "{")),
                (413, fetched(browser, url, "/v1/chat/completions", CHAT | {"user": "x" * 20_000})),
                (405, fetched(browser, url, "/v1/chat/completions", method="DELETE"))]
    for status, answer in refusals:
        assert answer["status"] == status and json.loads(answer["text"])["error"]["message"], (status, answer)
        assert answer["id"].startswith("req-"), (status, answer)


def test_a_page_of_another_origin_reads_nothing(browser, two_origins):
    _, other, url = two_origins
    visit(browser, other)
    for answer in (fetched(browser, url, "/v1/chat/completions", CHAT), fetched(browser, url, "/v1/models", method="GET"),
                   fetched(browser, url, "/v1/models", method="GET", Authorization="Bearer wrong")):
        assert answer == {"status": 0, "text": "TypeError"}
