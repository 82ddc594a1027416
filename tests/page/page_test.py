"""The web page in a browser: it talks to the demo model, and to answers that mean it harm."""
import json
import shutil
import subprocess
import urllib.request

import pytest

import chromium
from nibble_program import ROOT
from opened_demo import write_opened_demo
from page_actions import (LAST, MARKDOWN, PICTURES, WHOLE, answers_json, answers_with, last_text, on_each_change, open_page, reload, say, scrolls_sideways, serving,
                          set_parameters)

def test_a_story_streams_and_its_tokens_tell_what_else_they_might_have_been(page):
    set_parameters(page, max_tokens=120, seed=7)
    on_each_change(page, "(window.lengths ??= new Set()).add(document.querySelector('#turns').textContent.length)")
    say(page, "Tell me a story about a frog")
    page.wait(WHOLE)
    assert page.run("lengths.size") > 4, "it grew while it came"  # beside question, waiting answer and foot
    story = last_text(page)
    assert "frog" in story.lower()
    summary = page.run(f"{LAST}.querySelector('.summary').textContent")
    assert "120 tokens" in summary and "seed 7" in summary and "cut off" in summary
    page.screenshot(PICTURES / "story-light.png")

    page.click(".answer:last-child [aria-pressed]")
    # The answer's tokens are there; the words of its header are not.
    assert 100 < page.run("document.querySelectorAll('.token').length") <= 120
    assert page.run("[...document.querySelectorAll('.token')].map((token) => token.textContent).join('')").replace("\n", "") == story.replace("\n", "")
    page.run("document.querySelector('.token').focus()")
    for _ in range(4):
        page.press("ArrowRight")
    assert page.run("[...document.querySelectorAll('.token')].indexOf(document.activeElement)") == 4
    assert page.run("document.querySelectorAll('#card li').length") >= 5
    assert page.run("document.querySelectorAll('#card .chosen').length") == 1
    assert "%" in page.run("document.querySelector('#card .chosen').textContent")
    page.screenshot(PICTURES / "tokens-light.png")
    page.window(1280, 800, dark=True)
    page.run("document.querySelector('#prompt').focus(); document.querySelector('.token[tabindex=\"0\"]').focus()")
    page.screenshot(PICTURES / "tokens-dark.png")
    page.press("Escape")
    assert page.run("document.querySelector('#card').hidden")


def test_one_seed_gives_one_answer_and_no_seed_another(page):
    set_parameters(page, max_tokens=40, seed=11)
    say(page, "Tell me a story about a bird")
    page.wait(WHOLE)
    first = last_text(page)
    again = "document.querySelector('.answer:last-child .again').click()"
    page.run(again)
    page.wait(WHOLE)
    assert last_text(page) == first
    set_parameters(page, seed="", temperature=1)
    page.run(again)
    page.wait(WHOLE)
    assert last_text(page) != first
    assert page.run("document.querySelectorAll('.answer').length") == 1


def test_escape_stops_an_answer_and_the_server_stops_too(page):
    # An answer that would go on for long, and a finger that is quicker than any machine.
    page.run("""(() => {
        const ask = window.fetch;
        window.fetch = (path, options) => ask(path, options.body ? {...options, body: JSON.stringify({...JSON.parse(options.body), ignore_eos: true})} : options);
    })()""")
    on_each_change(page, f"""{LAST}?.querySelector('.prose p') && !window.pressed && (window.pressed = true)
        && document.querySelector('#prompt').dispatchEvent(new KeyboardEvent('keydown', {{key: 'Escape', bubbles: true}}))""")
    set_parameters(page, max_tokens=1900, seed=3)
    say(page, "Tell me a very long story")
    page.wait(WHOLE)
    assert "stopped" in page.run(f"{LAST}.querySelector('.summary').textContent")
    page.wait("document.querySelector('#running').textContent === '0'")
    # The conversation goes on with what came.
    set_parameters(page, max_tokens=5)
    say(page, "Go on")
    page.wait(f"document.querySelectorAll('.answer').length === 2 && {WHOLE}")
    page.run("document.querySelector('#new').click()")
    assert page.run("document.querySelectorAll('.turn').length") == 0


HOSTILE = """<img src=x onerror="window.hacked = 1"> <script>window.hacked = 2</script>

<iframe src="http://evil.example/"></iframe> &lt;b&gt; [a](javascript:hacked=3) ![b](http://evil.example/b.png) [c](data:text/html,hi)

- <svg onload=alert(1)> **<b>bold</b>** and `<i>code</i>`
- [good](https://example.org/x"onclick=alert(1)) https://example.org/?q=<script>

| <u>head</u> | two |
| --- | --- |
| <s>cell</s> | `x` |

```html
<script>window.hacked = 4</script>
```
> <a href="javascript:hacked=5">quoted</a>
"""


def test_what_a_model_writes_never_becomes_markup(page):
    token = {"token": "<b>&amp;</b>", "logprob": -0.1, "bytes": None, "top_logprobs": [{"token": "<img src=x onerror=hacked=6>", "logprob": -2.5, "bytes": None}]}
    answers_with(page, HOSTILE, tokens=[token])
    say(page, "<img src=y onerror=hacked=7>")
    page.wait(WHOLE)
    shown = last_text(page)
    for literal in ('<img src=x onerror="window.hacked = 1">', "<script>window.hacked = 2</script>", "&lt;b&gt;", "[a](javascript:hacked=3)",
                    "![b](http://evil.example/b.png)", "<svg onload=alert(1)>", "<b>bold</b>", "<i>code</i>", "<u>head</u>", "<s>cell</s>",
                    '<a href="javascript:hacked=5">quoted</a>', "<script>window.hacked = 4</script>"):
        assert literal in shown
    page.click(".answer:last-child [aria-pressed]")
    page.run("document.querySelector('.token').focus()")
    assert page.run("document.querySelector('.token').textContent") == "<b>&amp;</b>"
    assert "<img" in page.run("document.querySelector('#card').textContent")
    made = page.run("[...new Set([...document.querySelectorAll('#turns *, #card *')].map((node) => node.localName))]")
    assert not set(made) & {"img", "script", "iframe", "svg", "b", "i", "u", "s", "style", "object"}
    links = page.run("[...document.querySelectorAll('#turns a')].map((link) => [link.protocol, link.rel])")
    assert links and all(protocol in ("http:", "https:") and "noopener" in rel for protocol, rel in links)
    assert page.run("[...document.querySelectorAll('#turns *')].every((node) => node.getAttributeNames().every((name) => !name.startsWith('on')))")
    assert page.run("window.hacked") is None


def test_markdown_is_the_same_however_it_arrives(page):
    shapes = []
    for pieces in (1, 9, len(MARKDOWN)):
        answers_with(page, MARKDOWN, pieces=pieces)
        say(page, "Show me")
        page.wait(f"document.querySelectorAll('.answer').length === {len(shapes) + 1} && {WHOLE}")
        shapes.append(page.run(f"{LAST}.querySelector('.prose:not(.reasoning .prose)').innerHTML"))
    assert shapes[0] == shapes[1] == shapes[2]
    for tag in ("<h3>Title</h3>", "<em>line</em>", "<strong>bold</strong>", "<code>code</code>", "<ol start=\"1\">", "<li><p>inner</p></li>", "<pre ", "<th>column</th>", "<blockquote>"):
        assert tag in shapes[0], tag


def test_no_text_hangs_the_page(page):
    # Each makes some part of the reader try as much as it can; a hang is the browser's silence.
    units = ["**a ", "*", "_a ", "`a ``b ", "[", "[a](", "~~a", "> ", "- ", "|", "|-", "1. a\n", "- a\n  ", "```\n", "#", "|a|b|\n|-|-|\n", "https://a "]
    for unit in units:
        assert page.run(f"""import("./markdown.js").then(({{MarkdownView}}) => {{
            const root = document.createElement("div");
            const view = new MarkdownView(root);
            view.append({json.dumps(unit * (20000 // len(unit)))});
            view.render();
            return root.childNodes.length;
        }})""") > 0


def test_it_fits_a_phone_in_light_and_dark(page):
    page.window(360, 740, phone=True)
    page.screenshot(PICTURES / "phone-welcome.png")
    assert scrolls_sideways(page) == []
    answers_with(page, MARKDOWN, tokens=[{"token": word + " ", "logprob": -0.4 * i, "bytes": None, "top_logprobs": []} for i, word in enumerate("once upon a time there was".split())])
    say(page, "Show me a table and some code, and averyveryveryveryveryveryverylongwordofmyown")
    page.wait(WHOLE)
    for dark in (False, True):
        page.window(360, 740, dark=dark, phone=True)
        assert scrolls_sideways(page) == []
        page.screenshot(PICTURES / f"phone-{'dark' if dark else 'light'}.png")
    page.click("#side-toggle")
    for tab in ("live", "parameters", "plan"):
        page.click(f"#tab-{tab}")
        page.wait(f"!document.querySelector('#{tab}').hidden")
        assert scrolls_sideways(page) == []
        page.screenshot(PICTURES / f"phone-{tab}.png")
    page.press("Escape")
    assert page.run("getComputedStyle(document.querySelector('#side')).display") == "none"
    page.window(1280, 800, dark=True)
    page.screenshot(PICTURES / "wide-dark.png")


def test_the_keyboard_reaches_everything(page):
    page.run("document.querySelector('#prompt').focus()")
    page.type("one")
    page.press("Enter", shift=True)
    page.type("two")
    assert page.run("document.querySelector('#prompt').value") == "one\ntwo"
    assert page.run("document.querySelectorAll('.turn').length") == 0
    page.run("document.activeElement.blur(); document.querySelector('.skip').focus()")
    reached = []
    for _ in range(18):
        page.press("Tab")
        reached.append(page.run("document.activeElement.id || document.activeElement.textContent"))
        assert page.run("document.activeElement === document.body || getComputedStyle(document.activeElement).outlineStyle !== 'none' || document.activeElement.id === 'scroll'"), reached[-1]
    assert {"side-toggle", "list-toggle", "list-new", "prompt", "send", "keys-open", "tab-live", "live"} <= set(reached)
    page.run("document.querySelector('#tab-live').focus()")
    page.press("ArrowRight")
    assert page.run("document.activeElement.id") == "tab-parameters"
    unnamed = page.run("""[...document.querySelectorAll("input, select, textarea")].filter((field) => field.labels.length === 0).map((field) => field.id)""")
    assert unnamed == []


def test_what_was_not_sent_yet_outlives_a_reload(page):
    set_parameters(page, temperature=0.3, system="Be brief")
    page.run("document.querySelector('#prompt').focus()")
    page.type("Once upon")
    reload(page)
    assert page.run("['temperature', 'system', 'prompt'].map((id) => document.querySelector('#' + id).value)") == ["0.3", "Be brief", "Once upon"]
    assert page.run("document.querySelectorAll('.turn, #conversations li').length") == 0


def test_reasoning_is_folded_and_not_sent_back(page):
    sent = []
    answers_with(page, "So it is **42**.", reasoning="First I *think* about <b>it</b>.")
    fulfil = page.handlers["Fetch.requestPaused"]
    page.handlers["Fetch.requestPaused"] = lambda event: (sent.append(json.loads(event["request"]["postData"])), fulfil(event))
    set_parameters(page, system="Be brief", reasoning_effort="high", top_p=0.9)
    say(page, "What is it?")
    page.wait(WHOLE)
    assert last_text(page) == "So it is 42."
    fold = f"{LAST}.querySelector('details.reasoning')"
    assert page.run(f"!{fold}.hidden && !{fold}.open")
    page.run(f"{fold}.querySelector('summary').click()")
    assert page.run(f"{fold}.open && {fold}.querySelector('.prose').textContent") == "First I think about <b>it</b>."
    page.screenshot(PICTURES / "reasoning-light.png")
    say(page, "And then?")
    page.wait(f"document.querySelectorAll('.answer').length === 2 && {WHOLE}")
    assert [message["role"] for message in sent[1]["messages"]] == ["system", "user", "assistant", "user"]
    assert sent[1]["messages"][2]["content"] == "So it is **42**." and sent[1]["messages"][0]["content"] == "Be brief"
    assert sent[1]["reasoning_effort"] == "high" and sent[1]["top_p"] == 0.9 and sent[1]["temperature"] == 0.4 and "max_tokens" not in sent[1]


def test_calls_of_tools_are_shown_as_text_and_none_is_sent_back(page):
    sent = []
    answers_with(page, "", calls=[{"index": 0, "id": "a", "type": "function", "function": {"name": "weather", "arguments": ""}},
                                  {"index": 0, "function": {"arguments": '{"city": '}}, {"index": 0, "function": {"arguments": '"<b>Rome</b>"}'}},
                                  {"index": 1, "id": "b", "type": "function", "function": {"name": "clock", "arguments": "{}"}}])
    fulfil = page.handlers["Fetch.requestPaused"]
    page.handlers["Fetch.requestPaused"] = lambda event: (sent.append(json.loads(event["request"]["postData"])), fulfil(event))
    tools = [{"type": "function", "function": {"name": name}} for name in ("weather", "clock")]
    set_parameters(page, tools=json.dumps(tools))
    say(page, "How warm is it?")
    page.wait(WHOLE)
    calls = f"[...{LAST}.querySelectorAll('.calls li')].map((call) => call.textContent)"
    assert page.run(calls) == ['weather({"city": "<b>Rome</b>"})', "clock({})"]
    assert sent[0]["tools"] == tools and "logprobs" not in sent[0]
    reload(page)
    page.wait(WHOLE)
    assert page.run(calls) == ['weather({"city": "<b>Rome</b>"})', "clock({})"]
    set_parameters(page, tools="no JSON")
    say(page, "And now?")
    page.wait(f"document.querySelectorAll('.answer').length === 2 && {WHOLE}")
    assert [message["role"] for message in sent[1]["messages"]] == ["user", "user"] and sent[1]["tools"] == "no JSON"


def test_a_call_that_the_model_makes_of_itself_is_shown(browser, tmp_path):
    write_opened_demo(tmp_path, "<|channel|>commentary to=functions.look <|constrain|>json<|message|>")
    with serving(model=tmp_path) as url:
        browser.handlers = {}
        open_page(browser, url)
        set_parameters(browser, tools=json.dumps([{"type": "function", "function": {"name": "look"}}]), seed=2, max_tokens=60)
        say(browser, "Is a frog green?")
        browser.wait(WHOLE)
        call, = browser.run(f"[...{LAST}.querySelectorAll('.calls li')].map((call) => call.textContent)")
        assert call.startswith("look(") and len(call) > 10 and last_text(browser) == ""
        browser.screenshot(PICTURES / "call-light.png")


def test_the_panel_draws_what_the_server_does(page):
    live = {"running": 3, "queued": 2, "pages": 100, "pages_used": 30, "pages_cached": 20, "prefix_queries": 400, "prefix_hits": 100, "steps": 5,
            "prompt_tokens": 1234, "generated_tokens": 10**7}
    answers_json(page, "*/live", live)
    page.wait("document.querySelector('#running').textContent === '3' && document.querySelectorAll('#pages rect').length === 100")
    assert [page.run(f"document.querySelectorAll('#pages .{state}').length") for state in ("used", "cached", "free")] == [30, 20, 50]
    assert page.run("document.querySelector('#pages').getAttribute('aria-label')") == "30 of 100 pages in use, 20 kept"
    assert page.run("document.querySelector('#hits').textContent") == "100 tokens, 25 %"
    page.wait("Number(document.querySelector('#rates polyline').getAttribute('points').split(' ').at(-1).split(',')[1]) > 0")
    page.wait("document.querySelector('#rate').textContent === '0'")  # the same count again
    page.screenshot(PICTURES / "panel-light.png")
    answers_json(page, "*/live", live | {"pages": 100_000, "pages_used": 1, "pages_cached": 0})
    page.wait("document.querySelectorAll('#pages rect').length === 400")
    assert page.run("document.querySelectorAll('#pages .used').length") == 1


def test_the_plan_shows_each_choice_and_what_was_refused(page, url):
    page.run("document.querySelector('#tab-plan').click()")
    page.wait("document.querySelectorAll('#choices dt').length >= 3")
    with urllib.request.urlopen(f"{url}/plan") as answer:
        assert page.run("document.querySelectorAll('#choices dt').length") == len(json.load(answer)["choices"])
    answers_json(page, "*/plan", {"choices": [{"field": "moe_runner", "value": "cpu_<b>", "from": "user", "why": "it was asked for", "rejected": [
        {"value": "marlin", "why": "needs a GPU, and this is a rather long reason why it cannot be had on this machine"}, {"value": "triton", "why": "is <i>not</i> here"}]}]})
    page.run("document.querySelector('#tab-live').click(); document.querySelector('#tab-plan').click()")
    page.wait("document.querySelector('#choices dd strong')?.textContent === 'cpu_<b>'")
    assert page.run("document.querySelector('#choices summary').textContent") == "2 refused"
    page.run("document.querySelector('#choices summary').click()")
    rows = page.run("[...document.querySelectorAll('#choices tr')].map((row) => row.textContent)")
    assert rows[1] == "tritonis <i>not</i> here" and rows[0].startswith("marlin")
    page.screenshot(PICTURES / "plan-light.png")
    answers_json(page, "*/plan", [{"field": "simple", "value": 1}])
    page.run("document.querySelector('#tab-live').click(); document.querySelector('#tab-plan').click()")
    page.wait("document.querySelector('#choices dt')?.textContent === 'simple'")


def test_a_broken_stream_is_told_and_can_be_tried_again(page):
    answers_with(page, "Half an", ended=False)
    say(page, "Hi")
    page.wait(WHOLE)
    assert last_text(page) == "Half an"
    assert "broke off" in page.run(f"{LAST}.querySelector('[role=alert]').textContent")
    answers_with(page, "Whole.")
    page.run(f"{LAST}.querySelector('.again').click()")
    page.wait(f"{WHOLE} && {LAST}.textContent.includes('Whole.')")
    assert page.run("document.querySelectorAll('[role=alert]').length") == 0


def test_a_server_that_goes_and_comes_back_is_found_again(browser):
    with serving() as url:
        open_page(browser, url)
    browser.wait("document.querySelector('#connection').dataset.state === 'lost'")
    say(browser, "Is anyone there?")
    browser.wait(WHOLE)
    assert "does not answer" in browser.run(f"{LAST}.querySelector('[role=alert]').textContent")
    with serving(port=url.rsplit(":", 1)[1]):
        browser.wait("document.querySelector('#connection').dataset.state === 'ready'")
        set_parameters(browser, max_tokens=12)
        browser.run(f"{LAST}.querySelector('.again').click()")
        browser.wait(f"{WHOLE} && {LAST}.querySelector('.summary')")


def test_a_key_is_asked_for_where_the_server_wants_one(browser):
    with serving("--api-key", "secret") as url:
        browser.call("Page.navigate", url=url)
        for key in ("wrong", "secret"):
            browser.wait("document.querySelector('#key-dialog').open")
            browser.run("document.querySelector('#key').focus()")
            browser.type(key)
            browser.press("Enter")
            if key == "wrong":
                browser.wait("document.querySelector('#connection').textContent.includes('key')")
        browser.wait("document.querySelector('#connection').dataset.state === 'ready'")
        set_parameters(browser, max_tokens=12)
        say(browser, "Hi")
        browser.wait(f"{WHOLE} && {LAST}.querySelector('.summary')")


@pytest.mark.skipif(chromium.PROGRAM is not None or shutil.which("node") is None, reason="the browser reads the scripts, or there is nothing that could")
def test_scripts_parse(tmp_path):
    for script in (ROOT / "src/server/page").glob("*.js"):
        module = tmp_path / f"{script.stem}.mjs"
        module.write_bytes(script.read_bytes())
        subprocess.run(["node", "--check", module], check=True)


def test_its_files_are_the_trees_and_are_asked_for_by_their_tags(url):
    with urllib.request.urlopen(f"{url}/app.js") as answer:
        assert answer.read() == (ROOT / "src/server/page/app.js").read_bytes()
        tag = answer.headers["ETag"]
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(urllib.request.Request(f"{url}/app.js", headers={"If-None-Match": tag}))
    assert error.value.code == 304 and error.value.headers["Content-Length"] is None


def test_the_demo_model_begins_with_its_own_temperature_and_stories(page):
    assert page.run("document.querySelector('#temperature').value") == "0.4"
    assert page.run("[...document.querySelectorAll('#suggestions button')].every((each) => each.textContent.startsWith('Tell me a story'))")
    set_parameters(page, temperature=0.9)
    page.run("document.querySelector('#parameter-form').reset()")
    page.wait("document.querySelector('#temperature').value === '0.4'")
    set_parameters(page, temperature=0.9)
    page.run("document.querySelector('#use-for-new').click()")
    sent = []
    answers_with(page, "Yes.")
    fulfil = page.handlers["Fetch.requestPaused"]
    page.handlers["Fetch.requestPaused"] = lambda event: (sent.append(json.loads(event["request"]["postData"])), fulfil(event))
    page.run("document.querySelector('#suggestions button').click()")
    page.wait(WHOLE)
    page.run("document.querySelector('#list-new').click()")
    assert sent[0]["temperature"] == 0.9 and page.run("document.querySelector('#temperature').value") == "0.9"
