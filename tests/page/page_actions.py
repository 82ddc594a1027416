"""What tests do with the page in the browser: open it, ask, answer in the server's place."""
import base64
import contextlib
import json
import signal
import subprocess

from nibble_program import BINARY, ROOT, environment

PICTURES = ROOT / "build/page"  # for whoever wants to look
LAST = "document.querySelector('.answer:last-child')"
WHOLE = f"{LAST} && !{LAST}.hasAttribute('aria-busy')"


@contextlib.contextmanager
def serving(*arguments, port=0, model="demo"):
    """A server's URL; at the end, however the test ends, it is told to go."""
    process = subprocess.Popen([str(part) for part in (BINARY, "serve", model, "--port", port, *arguments)], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True, env=environment())
    url = process.stdout.readline().strip()
    try:
        assert url.startswith("http://"), "it did not start"
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=60)
    assert code == 0


def open_page(browser, url):
    """With nothing kept of what was before."""
    browser.window(1280, 800)
    forget(browser, url)
    browser.call("Page.navigate", url=url)
    wait_for_page(browser, url)


def forget(browser, url):
    """Empties what the browser keeps for this server, while no page of it is open."""
    browser.call("Page.navigate", url=f"{url}/icon.svg")
    browser.wait(f"location.href === '{url}/icon.svg' && document.readyState === 'complete'")
    browser.run("localStorage.clear(), sessionStorage.clear()")


def wait_for_page(browser, url):
    browser.wait(f"location.href === '{url}/' && document.readyState === 'complete' && document.querySelector('#connection')?.dataset.state === 'ready'")


def reload(browser):
    browser.run("window.old = true")
    browser.call("Page.reload")
    browser.wait("!window.old && document.readyState === 'complete' && document.querySelector('#connection')?.dataset.state === 'ready'")


def answers_with(browser, text, pieces=7, tokens=(), ended=True, reasoning="", calls=()):
    """From now on a chat is answered by this text, without asking the server."""
    step = max(1, len(text) // pieces)
    parts = [text[at:at + step] for at in range(0, len(text), step)]
    chunks = [{"choices": [{"index": 0, "delta": {"content": part}, "finish_reason": None}]} for part in parts]
    if reasoning:
        chunks.insert(0, {"choices": [{"index": 0, "delta": {"role": "assistant", "reasoning_content": reasoning, "reasoning": reasoning}}]})
    for call in calls:
        chunks.append({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    if tokens:
        chunks[0]["choices"][0]["logprobs"] = {"content": list(tokens)}
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"] * ended

    def answer(event):
        browser.send("Fetch.fulfillRequest", requestId=event["requestId"], responseCode=200,
                     responseHeaders=[{"name": "Content-Type", "value": "text/event-stream"}],
                     body=base64.b64encode("".join(lines).encode()).decode())

    browser.handlers["Fetch.requestPaused"] = answer
    browser.call("Fetch.enable", patterns=[{"urlPattern": "*/v1/chat/completions"}])


def answers_json(browser, pattern, body):
    """From now on requests for this are answered by this."""
    def answer(event):
        browser.send("Fetch.fulfillRequest", requestId=event["requestId"], responseCode=200,
                     responseHeaders=[{"name": "Content-Type", "value": "application/json"}], body=base64.b64encode(json.dumps(body).encode()).decode())

    browser.handlers["Fetch.requestPaused"] = answer
    browser.call("Fetch.enable", patterns=[{"urlPattern": pattern}])


def say(browser, text):
    browser.run("document.querySelector('#prompt').focus()")
    browser.type(text)
    browser.press("Enter")


def on_each_change(browser, script):
    """Runs it in the page whenever the conversation there changes."""
    browser.run(f"new MutationObserver(() => {{ {script}; }}).observe(document.querySelector('#turns'), {{childList: true, subtree: true}}), 0")


def set_parameters(browser, **values):
    for name, value in values.items():
        browser.run(f"""(() => {{
            const field = document.querySelector("#{name}");
            field.value = {json.dumps(str(value))};
            field.dispatchEvent(new Event("input", {{bubbles: true}}));
        }})()""")


def last_text(browser):
    return browser.run(f"{LAST}.querySelector('.prose:not(.reasoning .prose)').textContent")


def scrolls_sideways(browser):
    return browser.run("""[...document.querySelectorAll("html, body, main, #scroll, #side, #list, #conversations")].filter(
        (box) => box.scrollWidth > box.clientWidth).map((box) => box.id || box.tagName)""")


MARKDOWN = """# Title

First *line* with **bold** and `code`,
second line.

1. one
   - inner
2. two

```python
def f(x):
    return "a very long line that has to scroll inside its own box and must not widen the page at all, ever"
```

| column | another column with a long heading | and a third one that is wide |
| --- | --- | --- |
| 1 | 2 | averyveryveryveryveryverylongwordwithoutanyspacesatall |

averyveryveryveryveryveryveryveryveryveryveryveryveryveryveryverylongwordoutsideofanytable

> quoted

Last words."""
