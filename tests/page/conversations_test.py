"""Conversations of the web page: kept, named, exported, deleted, and what happens when the browser cannot keep them."""
import contextlib
import http.client
import http.server
import json
import threading
import time

import pytest

from page_actions import LAST, MARKDOWN, PICTURES, WHOLE, answers_with, forget, last_text, reload, say, scrolls_sideways, set_parameters

TITLES = "[...document.querySelectorAll('#conversations .open > span:first-child')].map((title) => title.textContent)"
PREFIX = "nibble:/:chat:"


def converse(page, question, answer="An answer.", **more):
    """A new conversation with one question."""
    page.run("document.querySelector('#list-new').click()")
    answers_with(page, answer, **more)
    say(page, question)
    page.wait(f"document.querySelector('.question p')?.textContent === {json.dumps(question)} && {WHOLE}")


def titles(page):
    page.run("new Promise(requestAnimationFrame)")
    return page.run(TITLES)


def kept(page):
    """The kept conversations, by their first questions."""
    texts = page.run(f"Object.keys(localStorage).filter((name) => name.startsWith('{PREFIX}')).map((name) => localStorage.getItem(name))")
    return {each["messages"][0]["content"]: each for each in map(json.loads, texts)}


def choose(page, title):
    page.run(f"[...document.querySelectorAll('#conversations .open')].find((row) => row.title === {json.dumps(title)}).click()")


def menu(page, title, entry):
    page.run(f"[...document.querySelectorAll('#conversations .open')].find((row) => row.title === {json.dumps(title)}).nextElementSibling.click()")
    page.run(f"[...document.querySelectorAll('#menu [role=menuitem]')].find((item) => item.textContent === {json.dumps(entry)}).click()")


def fill(page, count, answer="An answer."):
    """Kept conversations of several days, as a page of before left them."""
    page.run(f"""(() => {{
        for (let i = 1; i <= {count}; ++i) {{
            const time = new Date(Date.now() - i * i * 1.3e7).toISOString();
            const id = i.toString(16).padStart(16, "0");
            localStorage.setItem("{PREFIX}" + id, JSON.stringify({{id, title: "", created: time, updated: time, model: "demo", parameters: {{}}, messages: [
                {{role: "user", content: `Question ${{i}} of a rather long list of conversations`}},
                {{role: "assistant", content: {json.dumps(answer)}, details: {{tokens: 3, seed: i, finish_reason: "stop"}}}}]}}));
        }}
    }})()""")
    reload(page)


# --- Kept ---


def test_a_reload_keeps_conversations_and_their_parameters(page):
    set_parameters(page, temperature=0.3, system="Be brief", stop="END\\n\none", top_k=40)
    converse(page, "First question", "First **answer**.", reasoning="Hm.")
    converse(page, "Second question", "Second answer.")
    set_parameters(page, temperature=1.1)
    page.run("document.querySelector('#prompt').focus()")
    page.type("half a thou")
    reload(page)
    assert titles(page) == ["Second question", "First question"]
    assert last_text(page) == "Second answer."
    assert page.run("document.querySelector('#temperature').value") == "1.1"
    assert page.run("document.querySelector('#prompt').value") == "half a thou"
    choose(page, "First question")
    assert last_text(page) == "First answer." and page.run(f"{LAST}.querySelector('strong').textContent") == "answer"
    assert page.run(f"{LAST}.querySelector('.reasoning .prose').textContent") == "Hm."
    assert "seed" in page.run(f"{LAST}.querySelector('.summary').textContent")
    values = page.run("['temperature', 'system', 'stop', 'top_k'].map((id) => document.querySelector('#' + id).value)")
    assert values == ["0.3", "Be brief", "END\\n\none", "40"]
    assert page.run("document.querySelector('#prompt').value") == ""
    # It goes on where it was.
    answers_with(page, "More.")
    say(page, "Go on")
    page.wait(f"document.querySelectorAll('.answer').length === 2 && {WHOLE}")
    assert [message["content"] for message in kept(page)["First question"]["messages"]] == ["First question", "First **answer**.", "Go on", "More."]
    assert titles(page)[0] == "First question"


def test_an_answer_that_a_reload_interrupts_keeps_what_came(page):
    page.run("""window.fetch = ((ask) => (path, options) => options?.body ?
        Promise.resolve(new Response(new ReadableStream({start: (out) => out.enqueue(new TextEncoder().encode(
            'data: {"choices":[{"index":0,"delta":{"content":"The beginning"}}]}\\n\\n'))}))) : ask(path, options))(window.fetch)""")
    say(page, "Hi")
    page.wait(f"{LAST}?.textContent.includes('The beginning')")
    reload(page)
    assert last_text(page) == "The beginning"
    assert "interrupted by a reload" in page.run(f"{LAST}.querySelector('.summary').textContent")
    answers_with(page, "All of it.")
    page.run(f"{LAST}.querySelector('.again').click()")
    page.wait(f"{WHOLE} && {LAST}.textContent.includes('All of it.')")


def test_an_answer_goes_on_while_another_conversation_is_open(page):
    held = []
    converse(page, "Quick", "Done.")
    page.run("document.querySelector('#list-new').click()")
    answers_with(page, "Slow answer.")
    fulfil = page.handlers["Fetch.requestPaused"]
    page.handlers["Fetch.requestPaused"] = held.append
    say(page, "Slow")
    page.wait("document.querySelector('#send').textContent === 'Stop'")
    choose(page, "Quick")
    assert last_text(page) == "Done." and page.run("document.querySelector('#send').textContent") == "Send"
    page.wait("document.querySelectorAll('#conversations .busy').length === 1")
    page.run("document.querySelector('#conversations .open').pressed = true")
    set_parameters(page, temperature=0.4)  # keeps the conversation again, and changes nothing in the list
    page.run("new Promise(requestAnimationFrame)")
    assert page.run("document.querySelector('#conversations .open').pressed"), "who was about to press it would have missed"
    fulfil(held[0])
    page.wait("document.querySelectorAll('#conversations .busy').length === 0")
    assert last_text(page) == "Done."
    choose(page, "Slow")
    assert last_text(page) == "Slow answer."
    assert kept(page)["Slow"]["messages"][1]["content"] == "Slow answer."


def test_another_tab_sees_what_changes(page, url):
    converse(page, "Mine", "Answer.")
    first = page.session
    target = page.open_tab(url)
    second = page.session
    try:
        page.wait(f"document.readyState === 'complete' && {TITLES}.length === 1")
        page.run("document.querySelector('#conversations .open').focus()")
        page.run("document.querySelector('#conversations .open').dispatchEvent(new KeyboardEvent('keydown', {key: 'F2', bubbles: true}))")
        page.run("document.querySelector('#rename').value = 'Theirs'; document.querySelector('#rename-form').requestSubmit()")
        page.session = first
        page.wait(f"{TITLES}[0] === 'Theirs'")
        assert last_text(page) == "Answer."
        page.session = second
        page.run("document.querySelector('#conversations .open').dispatchEvent(new KeyboardEvent('keydown', {key: 'Delete', bubbles: true}))")
        page.session = first
        page.wait(f"{TITLES}.length === 0 && document.querySelectorAll('.turn').length === 0")
    finally:
        page.session = None
        page.call("Target.closeTarget", targetId=target)
        page.session = first


# --- By keyboard ---


def test_conversations_are_made_named_walked_and_deleted_by_keyboard(page):
    for question in ("one", "two", "three"):
        page.press("n", alt=True)
        assert page.run("document.activeElement.id") == "prompt"
        answers_with(page, f"{question} is answered.")
        page.type(question)
        page.press("Enter")
        page.wait(f"document.querySelector('.question p')?.textContent === '{question}' && {WHOLE}")
    assert titles(page) == ["three", "two", "one"]
    page.press("ArrowDown", alt=True)
    assert last_text(page) == "two is answered."
    page.press("ArrowUp", alt=True)
    assert last_text(page) == "three is answered."
    # Into the list, to the last one, a new name for it.
    page.press("l", alt=True)
    assert page.run("getComputedStyle(document.querySelector('#list')).display") == "none"
    page.press("l", alt=True)
    page.press("End")
    assert page.run("document.activeElement.title") == "one"
    page.press("F2")
    assert page.run("document.activeElement.id") == "rename"
    page.type("The <b>first</b>")
    page.press("Enter")
    page.wait("document.activeElement.title === 'The <b>first</b>'")
    assert titles(page) == ["three", "two", "The <b>first</b>"]
    assert page.run("document.querySelectorAll('#conversations b').length") == 0
    reload(page)
    assert titles(page)[2] == "The <b>first</b>"
    # Deleted, and had back.
    page.run("document.querySelector('#conversations .open').focus()")
    page.press("End")
    page.press("ArrowUp")
    page.press("Delete")
    assert titles(page) == ["three", "The <b>first</b>"] and page.run("document.activeElement.title") == "The <b>first</b>"
    assert "two" not in kept(page)
    page.screenshot(PICTURES / "deleted.png")
    page.run("document.querySelector('#undo').click()")
    assert titles(page) == ["three", "two", "The <b>first</b>"] and "two" in kept(page)
    assert last_text(page) == "two is answered."
    # The menu.
    page.run("document.querySelector('#chat-menu').focus()")
    page.press("Enter")
    assert page.run("document.activeElement.textContent") == "Rename"
    page.press("ArrowUp")
    assert page.run("document.activeElement.textContent") == "Delete"
    page.screenshot(PICTURES / "menu-light.png")
    page.press("Escape")
    assert page.run("document.activeElement.id") == "chat-menu" and page.run("document.querySelector('#menu').hidden")


def test_the_shortcuts_are_told_on_the_page(page):
    page.run("document.activeElement.blur()")
    page.press("?", shift=True)
    page.wait("document.querySelector('#shortcuts').open")
    told = page.run("document.querySelector('#shortcuts').textContent")
    for key in ("Enter", "Esc", "Alt", "N", "F2", "Delete", "/"):
        assert key in told
    page.screenshot(PICTURES / "shortcuts.png")
    page.press("Escape")
    page.wait("!document.querySelector('#shortcuts').open")
    page.run("document.activeElement.blur()")
    page.press("/")
    assert page.run("document.activeElement.id") == "prompt" and page.run("document.querySelector('#prompt').value") == ""
    page.type("a/b?")  # there they are letters
    assert page.run("document.querySelector('#prompt').value") == "a/b?" and not page.run("document.querySelector('#shortcuts').open")


def test_editing_replaces_nothing_before_it_is_sent(page):
    converse(page, "First", "Answer one.")
    answers_with(page, "Answer two.")
    say(page, "Second")
    page.wait(f"document.querySelectorAll('.answer').length === 2 && {WHOLE}")
    page.press("ArrowUp")  # in the empty prompt: the last question
    assert page.run("document.querySelector('#prompt').value") == "Second"
    assert page.run("document.querySelectorAll('.replaced').length") == 2
    page.press("Escape")
    assert page.run("document.querySelector('#prompt').value") == "" and page.run("document.querySelectorAll('.replaced').length") == 0
    page.run("document.querySelector('.question button').click()")
    assert page.run("document.querySelectorAll('.replaced').length") == 4 and len(kept(page)["First"]["messages"]) == 4
    page.type(" again")
    page.screenshot(PICTURES / "editing.png")
    answers_with(page, "Answer three.")
    page.press("Enter")
    page.wait(f"document.querySelectorAll('.answer').length === 1 && {WHOLE}")
    assert [message["content"] for message in kept(page)["First again"]["messages"]] == ["First again", "Answer three."]


# --- Export and import ---


@contextlib.contextmanager
def downloads(page, folder):
    session, page.session = page.session, None
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    page.session = session

    def newest():
        end = time.monotonic() + 20
        while time.monotonic() < end:
            files = [file for file in folder.iterdir() if not file.name.endswith(".crdownload")]
            if files:
                text = files[0].read_text()
                files[0].unlink()
                return files[0].name, text
            time.sleep(0.05)
        raise AssertionError("nothing was downloaded")

    yield newest


def test_exports_are_markdown_and_json_and_the_json_comes_back(page, tmp_path):
    set_parameters(page, system="Be brief", temperature=0.25, stop="END")
    converse(page, "What is it? `x` & <b>", MARKDOWN, reasoning="I *think*.")
    converse(page, "Second", "Two.")
    before = kept(page)
    with downloads(page, tmp_path) as newest:
        menu(page, "What is it? `x` & <b>", "Export as Markdown")
        name, text = newest()
        assert name.startswith("what-is-it-x-b-") and name.endswith(".md")
        for part in ("# What is it? `x` & <b>", "temperature 0.25", "## System\n\nBe brief", "## You\n\nWhat is it? `x` & <b>", "I *think*.", f"## demo\n\n<details>", MARKDOWN):
            assert part in text
        menu(page, "Second", "Export as JSON")
        name, text = newest()
        assert name.startswith("second-") and name.endswith(".json")
        one = json.loads(text)
        assert one["version"] == 1 and one["conversations"] == [before["Second"]]
        page.run("document.querySelector('#export-all').click()")
        name, text = newest()
        assert {each["messages"][0]["content"]: each for each in json.loads(text)["conversations"]} == before
    page.run("document.querySelector('#delete-all').click()")
    page.wait("document.querySelector('#delete-dialog').open")
    page.press("Escape")
    assert len(kept(page)) == 2
    page.run("document.querySelector('#delete-all').click(); document.querySelector('#delete-form').requestSubmit()")
    page.wait(f"{TITLES}.length === 0")
    assert kept(page) == {}

    def bring(text):
        file = tmp_path / "import.json"
        file.write_text(text)
        page.run("document.querySelector('#toast').hidden = true")
        field = page.call("Runtime.evaluate", expression="document.querySelector('#import-file')")["result"]["objectId"]
        page.call("DOM.setFileInputFiles", files=[str(file)], objectId=field)
        page.wait("!document.querySelector('#toast').hidden")
        return page.run("document.querySelector('#toast span').textContent")

    assert bring(text) == "Imported 2 conversations from import.json."
    assert kept(page) == before
    assert bring(text) == "Imported 0 conversations from import.json."  # they are here
    assert len(titles(page)) == 2
    for wrong, why in (("{", "not JSON"), ("[]", "not an export"), ('{"format":"nibble conversations","version":2,"conversations":[]}', "version 2"),
                       ('{"format":"nibble conversations","version":1,"conversations":[{"messages":[{"role":"x","content":""}]}]}', "conversation 1 is damaged")):
        assert why in bring(wrong)
    assert kept(page) == before


# --- When the browser cannot keep them ---


def test_damaged_entries_stop_nothing_and_can_be_saved(page, tmp_path):
    converse(page, "Whole", "Answer.")
    damages = ["", "{", "null", "[]", "7", '"text"', '{"messages":[]}', '{"messages":[{"role":"user"}]}', '{"messages":[{"role":"user","content":5}]}',
               '{"messages":[{"role":"assistant","content":"a"}]}', '{"id":"00000000000000aa","messages":[{"role":"user","content":"another id"}]}', "[" * 100_000]
    page.run(f"{json.dumps(damages)}.forEach((text, i) => localStorage.setItem('{PREFIX}' + i, text))")
    page.run("sessionStorage.setItem('nibble:/:tab', '{'); localStorage.setItem('nibble:/:parameters', '[1')")
    reload(page)
    assert titles(page) == ["Whole"]
    assert page.run("document.querySelector('#damaged').textContent").startswith(f"{len(damages)} kept conversations are damaged")
    page.screenshot(PICTURES / "damaged.png")
    with downloads(page, tmp_path) as newest:
        page.run("document.querySelector('#damaged-export').click()")
        assert '{"messages":[{"role":"user","content":5}]}' in newest()[1]
    page.run("document.querySelector('#damaged-delete').click()")
    page.wait("document.querySelector('#damaged').hidden")
    reload(page)
    assert page.run("document.querySelector('#damaged').hidden") and titles(page) == ["Whole"]
    # Parts that make no sense are left out; the words stay.
    odd = {"id": "00000000000000bb", "title": 5, "created": "yesterday", "updated": None, "parameters": {"temperature": {}, "system": "s", "stop": [1]},
           "messages": [{"role": "user", "content": "Odd"}, {"role": "assistant", "content": "A", "details": {"tokens": "many", "seed": None}}]}
    page.run(f"localStorage.setItem('{PREFIX}00000000000000bb', {json.dumps(json.dumps(odd))})")
    reload(page)
    choose(page, "Odd")
    assert last_text(page) == "A" and page.run("document.querySelector('#system').value") == "s"
    assert page.run("document.querySelector('.summary')") is None  # nobody knows how it went


def test_a_full_browser_is_told_and_loses_nothing_on_the_page(page):
    fill(page, 4, "x" * 990_000)
    converse(page, "No room", "A long answer. " * 4000)
    page.wait("!document.querySelector('#notice').hidden")
    assert "are full, so this one is not kept" in page.run("document.querySelector('#notice').textContent")
    assert "A long answer." in last_text(page) and "No room" in titles(page)
    assert json.dumps(kept(page)).count("A long answer.") == 0
    assert "100 %" in page.run("document.querySelector('#room').textContent") or "99 %" in page.run("document.querySelector('#room').textContent")
    page.screenshot(PICTURES / "full-light.png")
    menu(page, "Question 1 of a rather long list of conversations", "Delete")
    assert page.run("document.querySelector('#notice').hidden")
    answers_with(page, "It is kept now.")
    say(page, "Again")
    page.wait(f"document.querySelectorAll('.answer').length === 2 && {WHOLE}")
    assert len(kept(page)["No room"]["messages"]) == 4


def test_a_browser_that_forbids_storage_still_talks(page, url):
    forbid = """for (const name of ['localStorage', 'sessionStorage'])
        Object.defineProperty(window, name, {get: () => { throw new DOMException('no', 'SecurityError'); }});"""
    script = page.call("Page.addScriptToEvaluateOnNewDocument", source=forbid)["identifier"]
    try:
        page.call("Page.reload")
        page.wait("document.querySelector('#room') && !document.querySelector('#room').hidden && document.querySelector('#connection').dataset.state === 'ready'")
        assert "keeps nothing" in page.run("document.querySelector('#room').textContent")
        converse(page, "Hi", "Hello.")
        converse(page, "Hi again", "Hello again.")
        choose(page, "Hi")
        assert last_text(page) == "Hello."
    finally:
        page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)


def test_a_long_list_is_searched_and_fits(page):
    fill(page, 30)
    assert len(titles(page)) == 30
    page.screenshot(PICTURES / "list-light.png")
    page.run("document.querySelector('#search').focus()")
    page.type("question 17 ")
    assert titles(page) == ["Question 17 of a rather long list of conversations"]
    page.run("document.querySelector('#search').select()")
    page.type("nowhere")
    assert titles(page) == [] and "Nothing" in page.run("document.querySelector('#no-conversations').textContent")
    page.run("document.querySelector('#search').select()")
    page.type(" ")
    for dark in (False, True):
        page.window(360, 740, dark=dark, phone=True)
        page.run("document.querySelector('#list-toggle').getAttribute('aria-expanded') === 'true' || document.querySelector('#list-toggle').click()")
        assert scrolls_sideways(page) == [] and page.run("document.querySelector('main').inert")
        page.screenshot(PICTURES / f"phone-list-{'dark' if dark else 'light'}.png")
    page.run("document.querySelector('#conversations .more').click()")
    box = page.run("(({left, right, top, bottom}) => [left, right, top, bottom])(document.querySelector('#menu').getBoundingClientRect())")
    assert box[0] >= 0 and box[1] <= 360 and box[2] >= 0 and box[3] <= 740
    page.press("Escape")
    page.run("document.querySelector('#conversations .open').click()")
    assert page.run("getComputedStyle(document.querySelector('#list')).display") == "none" and not page.run("document.querySelector('main').inert")
    assert last_text(page) == "An answer."


# --- Parameters, code, reasoning ---


def test_every_parameter_is_sent_and_new_chats_begin_with_those_chosen_for_them(page):
    sent = []
    answers_with(page, "Yes.")
    fulfil = page.handlers["Fetch.requestPaused"]
    page.handlers["Fetch.requestPaused"] = lambda event: (sent.append(json.loads(event["request"]["postData"])), fulfil(event))
    set_parameters(page, system="Be brief", temperature=0.5, top_p=0.9, top_k=40, min_p=0.05, max_tokens=7, seed=3, stop="END\n\\n\\n\na\\\\nb",
                   repetition_penalty=1.1, frequency_penalty=0.5, presence_penalty=-0.5, reasoning_effort="low", json_schema='{"type": "object"}')
    page.run("document.querySelector('#use-for-new').click()")
    say(page, "Hi")
    page.wait(WHOLE)
    request = sent[0]
    assert request["messages"] == [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    assert {name: request[name] for name in request if name not in ("messages", "model", "stream", "stream_options")} == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "max_tokens": 7, "seed": 3, "stop": ["END", "\n\n", "a\\nb"], "repetition_penalty": 1.1,
        "frequency_penalty": 0.5, "presence_penalty": -0.5, "reasoning_effort": "low", "json_schema": '{"type": "object"}', "logprobs": True, "top_logprobs": 5}
    page.run("document.querySelector('#list-new').click()")
    assert page.run("['min_p', 'top_k', 'seed', 'stop'].map((id) => document.querySelector('#' + id).value)") == ["0.05", "40", "", "END\n\\n\\n\na\\\\nb"]
    page.run("document.querySelector('#parameter-form').reset()")
    page.wait("document.querySelector('#min_p').value === ''")
    say(page, "Hi")
    page.wait(f"document.querySelectorAll('.answer').length === 1 && {WHOLE}")
    assert set(sent[1]) == {"model", "messages", "stream", "stream_options", "seed", "temperature", "top_p", "logprobs", "top_logprobs"}


def test_the_server_takes_every_parameter_of_the_form(page):
    set_parameters(page, system="You tell stories.", temperature=0.5, top_p=0.9, top_k=40, min_p=0.05, max_tokens=8, seed=3, stop="END\n\\n\\n\\n",
                   repetition_penalty=1.1, frequency_penalty=0.5, presence_penalty=-0.5, reasoning_effort="low")
    say(page, "Tell me a story about a frog")
    page.wait(WHOLE)
    assert page.run(f"{LAST}.querySelector('.error')?.textContent ?? ''") == ""
    set_parameters(page, top_p=1, temperature=0.5, max_tokens=40, json_schema='{"enum": [1234]}')
    say(page, "And a number?")
    page.wait(f"document.querySelectorAll('.answer').length === 2 && {WHOLE}")
    assert last_text(page) == "1234"
    set_parameters(page, json_schema='', min_p=7)  # a refusal names what was wrong
    say(page, "And then?")
    page.wait(f"document.querySelectorAll('.answer').length === 3 && {WHOLE}")
    assert "min_p" in page.run(f"{LAST}.querySelector('.error').textContent.toLowerCase()")
    page.screenshot(PICTURES / "error-light.png")


CODE = """```python
def f(x):
    return "text"  # done
```

```
plain <b>
```

```html
<a href="x">&amp;</a>
```
"""


def test_code_is_coloured_by_text_alone_and_each_block_can_be_copied(page):
    answers_with(page, CODE)
    say(page, "Code")
    page.wait(WHOLE)
    parts = page.run("[...document.querySelectorAll('figure code span')].map((part) => [part.className, part.textContent])")
    assert [part for part in parts if part[0] != "code-name"][:4] == [["code-keyword", "def"], ["code-call", "f"], ["code-keyword", "return"], ["code-string", '"text"']]
    assert ["code-comment", "# done"] in parts and ["code-keyword", "<a"] in parts
    assert page.run("[...document.querySelectorAll('figure code *')].every((node) => node.localName === 'span')")
    assert page.run("[...document.querySelectorAll('figcaption span')].map((label) => label.textContent)") == ["python", "code", "html"]
    page.screenshot(PICTURES / "code-light.png")
    page.window(1280, 800, dark=True)
    page.screenshot(PICTURES / "code-dark.png")
    page.run("window.copied = []; Object.defineProperty(navigator, 'clipboard', {configurable: true, value: {writeText: async (text) => { copied.push(text); }}})")
    for number in range(3):
        page.run(f"document.querySelectorAll('.copy-code')[{number}].click()")
    page.wait("document.querySelectorAll('.copy-code')[2].textContent === 'Copied'")
    assert page.run("copied") == ['def f(x):\n    return "text"  # done', "plain <b>", '<a href="x">&amp;</a>']
    # Over plain HTTP from another machine there is no navigator.clipboard.
    page.run("Object.defineProperty(navigator, 'clipboard', {configurable: true, value: undefined});"
             "document.addEventListener('copy', () => { window.selected = String(document.activeElement.value); })")
    page.run("document.querySelectorAll('.copy-code')[1].click()")
    page.wait("window.selected === 'plain <b>'")


def test_highlighting_loses_no_letter_and_takes_time_in_proportion(page):
    units = ['"', "'", "`", "/*", "*/", "//", "=/", "=/[", 'R"(', 'R"x(', "#", "\\", "<a ", "<!--", "a", "1", "_", "$", "${", "\n", "\n#", "\n+", "@", "&", "a:", '"""', "-- ", "0x"]
    slow = page.run(f"""import("./highlight.js").then(({{highlight}}) => {{
        const trouble = [];
        for (const language of ["c", "js", "python", "rust", "go", "java", "sh", "sql", "json", "yaml", "toml", "css", "diff", "html", "none"])
            for (const unit of {json.dumps(units)})
                for (const other of ["", '"', "a "]) {{
                    const text = (unit + other).repeat(20000 / (unit + other).length);
                    const begin = performance.now();
                    const joined = highlight(language, text).map(([, part]) => part).join("");
                    if (joined !== text || performance.now() - begin > 5000) trouble.push([language, unit, other]);
                }}
        return trouble;
    }})""", timeout=120)
    assert slow == []


def test_reasoning_has_its_own_timer(page):
    page.run("""window.fetch = ((ask) => (path, options) => {
        if (!options?.body) return ask(path, options);
        const encoder = new TextEncoder();
        const chunk = (delta) => encoder.encode(`data: ${JSON.stringify({choices: [{index: 0, delta}]})}\\n\\n`);
        return Promise.resolve(new Response(new ReadableStream({async start(out) {
            out.enqueue(chunk({reasoning_content: "I wonder"}));
            await new Promise((done) => (window.goOn = done));
            out.enqueue(chunk({content: "Yes."}));
            await new Promise((done) => (window.goOn = done));
            out.enqueue(encoder.encode("data: [DONE]\\n\\n"));
            out.close();
        }})));
    })(window.fetch)""")
    say(page, "Why?")
    fold = f"{LAST}.querySelector('.reasoning summary')"
    page.wait(f"{fold}.textContent === 'Thinking for 1 s'")
    assert not page.run(f"{LAST}.querySelector('.reasoning').open")
    page.screenshot(PICTURES / "thinking-light.png")
    page.run("goOn()")
    page.wait(f"/^Thought for [1-9][0-9.]* s$/.test({fold}.textContent)")
    thought = page.run(f"{fold}.textContent")
    assert page.run(f"{LAST}.hasAttribute('aria-busy')")  # the answer goes on; thinking has ended
    page.run("new Promise((done) => setTimeout(done, 400))")
    page.run("goOn()")
    page.wait(WHOLE)
    assert page.run(f"{fold}.textContent") == thought
    reload(page)
    assert page.run(f"{fold}.textContent") == thought


# --- Behind a proxy ---


class PrefixProxy(http.server.BaseHTTPRequestHandler):
    """What a reverse proxy does that gives a server a prefix: nothing outside of it is answered."""
    protocol_version = "HTTP/1.1"
    prefix, upstream = "/tools/nibble", None
    strays = []

    def log_message(self, *_):
        pass

    def forward(self):
        if not self.path.startswith(self.prefix + "/"):
            self.strays.append(self.path)
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        connection = http.client.HTTPConnection(*self.upstream, timeout=60)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection.request(self.command, self.path[len(self.prefix):], body, {name: value for name, value in self.headers.items() if name.lower() != "connection"})
        answer = connection.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        while part := answer.read1(1 << 16):
            self.wfile.write(part)
            self.wfile.flush()
        self.close_connection = True
        connection.close()

    do_GET = do_POST = forward


@pytest.fixture
def proxied(url):
    PrefixProxy.upstream = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
    PrefixProxy.strays = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), PrefixProxy)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}{PrefixProxy.prefix}"
    server.shutdown()
    server.server_close()


def test_it_works_under_a_prefix_behind_a_proxy(browser, proxied):
    browser.handlers = {}
    browser.window(1280, 800)
    forget(browser, proxied)
    browser.call("Page.navigate", url=f"{proxied}/")
    browser.wait("document.querySelector('#connection')?.dataset.state === 'ready'")
    set_parameters(browser, max_tokens=12, seed=1)
    say(browser, "Tell me a story about a frog")
    browser.wait(f"{WHOLE} && {LAST}.querySelector('.summary')")
    story = last_text(browser)
    assert story and not browser.run(f"{LAST}.querySelector('.error')")
    browser.run("document.querySelector('#tab-plan').click()")
    browser.wait("document.querySelectorAll('#choices dt').length >= 3")
    assert browser.run("[...document.querySelectorAll('h1 img')].every((image) => image.naturalWidth > 0)")
    reload(browser)
    assert last_text(browser) == story
    # Another server under another prefix of this origin would have its own conversations.
    assert browser.run("Object.keys(localStorage).every((name) => name.startsWith('nibble:/tools/nibble/:'))")
    assert set(PrefixProxy.strays) <= {"/favicon.ico"}  # which the browser itself looks for
