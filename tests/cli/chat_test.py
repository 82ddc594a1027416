"""nibble chat in a real (pseudo-)terminal and in a pipe."""
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import termios
import time

import pytest

from nibble_program import BINARY, PARITY, environment, run
from opened_demo import write_opened_demo
from terminal_session import ESCAPES, TerminalSession

EXAMPLE = PARITY / "example"


@pytest.fixture
def chat(tmp_path):
    """chat(...) starts a session on the demo model whose history lies in a folder of its own."""
    sessions = []

    def start(*arguments, model="demo", **more):
        session = TerminalSession("chat", model, "--seed", 1, *arguments, XDG_STATE_HOME=str(tmp_path), **more)
        sessions.append(session)
        session.expect("/help shows the commands.")
        session.expect("> ")
        return session

    yield start
    for session in sessions:
        session.__exit__()


def ask(session, question):
    """Enters a question; gives the answer as shown."""
    session.send(question + "\r")
    session.expect(question)
    return session.expect("\n> ").removesuffix("\n> ").strip("\n")


def test_an_answer_streams_and_the_prompt_comes_back(chat):
    session = chat("--max-tokens", 60)
    answer = ask(session, "Tell me a story about a fox")
    assert len(re.findall(r"[a-z]+", answer)) > 20
    assert session.written.count("\n") > 2
    session.send("/exit\r")
    assert session.wait() == 0


def test_the_answer_is_the_same_in_a_terminal_and_in_a_pipe(chat):
    session = chat("--max-tokens", 60)
    shown = ask(session, "Tell me a story about a bear")
    code, out, err = run("chat", "demo", "--seed", 1, "--max-tokens", 60, stdin="Tell me a story about a bear\n")
    assert code == 0
    words = [w for w in shown.split() if w]
    assert out.split() == words[:len(out.split())]


def test_control_c_stops_the_answer_and_not_the_program(chat):
    session = chat()
    question = "Tell me a very long story about a bear"
    session.send(question + "\r")
    session.expect(question)
    while len(session.text()) < session.seen + 10:  # it has begun to answer
        assert session.pump(0.05)
    session.send("\x03")
    session.expect("(stopped)")
    session.expect("> ")
    session.send("/help\r")
    session.expect("/reset")
    session.expect("> ")
    session.send("\x04")
    assert session.wait() == 0


def test_keys_typed_while_an_answer_is_written_count_after_it(chat):
    session = chat("--max-tokens", 200)
    question = "Tell me a story about a bear"
    session.send(question + "\r")
    session.expect(question)
    while len(session.text()) < session.seen + 10:
        assert session.pump(0.05)
    session.send("\x04")
    assert session.wait() == 0
    assert termios.tcgetattr(session.fd) == session.modes


def test_control_c_at_the_prompt_drops_the_entry_and_twice_leaves(chat):
    session = chat()
    session.send("half a thou\x03")
    session.expect("^C")
    session.expect("> ")
    session.send("\x03")
    session.expect("once more leaves")
    session.expect("> ")
    session.send("x\x7f/he\x03")  # typing in between means staying
    session.expect("> ")
    session.send("\x03")
    session.expect("once more leaves")
    session.send("\x03")
    assert session.wait() == 0


def leave_by_signals(session):
    os.kill(session.pid, signal.SIGINT)
    session.expect("once more leaves")
    session.expect("> ")
    os.kill(session.pid, signal.SIGINT)
    assert session.wait() == 0


def test_an_interrupt_that_comes_as_a_signal_counts_as_the_key(chat):
    # What Ctrl-C is between two prompts, while the terminal does not hand over keys as they are pressed.
    session = chat()
    session.send("half")
    session.expect("half")
    os.kill(session.pid, signal.SIGINT)
    session.expect("^C")
    session.expect("> ")
    leave_by_signals(session)


def test_plain_lines_survive_a_resize_and_end_at_an_interrupt(chat):
    session = chat(TERM="dumb")
    for _ in range(5):
        session.pump(0.02)
        os.kill(session.pid, signal.SIGWINCH)
    session.send("/help\n")
    assert "leaves" not in session.expect("/reset")
    session.expect("> ")
    leave_by_signals(session)


def test_reset_forgets_so_that_the_same_seed_answers_alike(chat):
    session = chat("--max-tokens", 40)
    first = ask(session, "Tell me a story about a mouse")
    second = ask(session, "Tell me a story about a mouse")
    session.send("/reset\r")
    session.expect("starts anew")
    session.expect("> ")
    again = ask(session, "Tell me a story about a mouse")
    assert first == again
    assert first != second


def test_commands(chat):
    session = chat("--max-tokens", 20)
    session.send("/nonsense\r")
    session.expect("no command /nonsense; /help")
    session.send("/seed abc\r")
    session.expect("/seed takes a whole number")
    session.send("/seed 42\r")
    session.expect("seed 42")
    session.send("/temperature 3\r")
    session.expect("/temperature takes a number from 0 to 2")
    session.send("/temperature 0\r")
    session.expect("temperature 0")
    session.send("/system You are a pirate.\r")
    session.expect("the system message is set")
    session.send("/exit\r")
    assert session.wait() == 0


def test_history_comes_back_with_the_up_key_also_in_the_next_session(chat, tmp_path):
    session = chat()
    for entry in ("/seed 11", "/seed 12"):
        session.send(entry + "\r")
        session.expect("seed 1")
        session.expect("> ")
    session.send("\x1b[A\x1b[A\x1b[B\r")
    session.expect("/seed 12\nseed 12")
    session.expect("> ")
    session.send("\x04")
    assert session.wait() == 0
    file = tmp_path / "nibble/history"
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert file.read_text() == "/seed 11\n/seed 12\n"
    session = chat()
    session.send("\x1b[A\x1b[A\r")
    session.expect("/seed 11\nseed 11")


def test_keys_edit_the_entry(chat):
    session = chat()
    session.send("x/hepl\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D\x7f\x05\x14\x7f\x7flp\r")
    session.expect("/reset")


def test_a_paste_with_line_breaks_waits_for_enter(chat):
    session = chat()
    session.send("\x1b[200~/nonsense\none\n\x1b[201~")
    time.sleep(0.3)
    session.pump(0.1)
    assert "no command" not in session.text()
    session.send("\r")
    session.expect("no command /nonsense")


def test_a_resized_window_is_redrawn(chat):
    session = chat()
    session.send("/sys" + "x" * 60)
    session.expect("xxxx")
    session.resize(30)
    time.sleep(0.3)
    session.send("yz\r")
    session.expect("no command /sys")
    assert max(len(line) for line in session.text()[-120:].split("\n")[:1]) <= 80


@pytest.mark.parametrize("end", ["exit", "control_d", "terminate"])
def test_the_terminal_is_left_as_it_was(chat, end):
    session = chat()
    session.send("half")
    session.expect("half")
    assert not termios.tcgetattr(session.fd)[3] & termios.ICANON  # it was raw in between
    if end == "terminate":
        os.kill(session.pid, signal.SIGTERM)
        assert session.wait() == -signal.SIGTERM
    else:
        session.send("\x15/exit\r" if end == "exit" else "\x15\x04")
        assert session.wait() == 0
    assert termios.tcgetattr(session.fd) == session.modes


def test_old_turns_are_forgotten_when_the_context_is_full(chat):
    session = chat("--max-model-len", 160, "--max-tokens", 50)
    for _ in range(3):
        ask(session, "Tell me a story about a small brown dog and a cat")
    session.send("Tell me a story about the sea\r")
    session.expect("forgotten)")
    session.expect("\n> ")
    session.send("/exit\r")
    assert session.wait() == 0


def test_a_message_longer_than_the_context_is_refused_and_the_chat_goes_on(chat):
    session = chat("--max-model-len", 64, "--max-tokens", 10)
    session.send("tell me more and more " * 20 + "\r")
    session.expect("the context holds 64")
    session.expect("> ")
    ask(session, "Hello")


def test_a_model_cannot_drive_the_terminal(chat):
    """A random model at a high temperature writes every byte there is; only our own escape codes may arrive."""
    session = chat("--max-tokens", 300, "--temperature", 2, model=EXAMPLE)
    ask(session, "Hello")
    ours = {"\x1b[?2004h", "\x1b[?2004l", "\x1b[?25l", "\x1b[?25h", "\x1b[J", "\x1b[K", "\x1b[2m", "\x1b[22m"}
    found = set(ESCAPES.findall(session.written))
    assert {e for e in found if not re.fullmatch(r"\x1b\[\d+[ABC]", e)} <= ours
    rest = ESCAPES.sub("", session.written)
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", rest)


def test_no_color_means_no_color(chat):
    session = chat("--max-tokens", 20, NO_COLOR="1")
    ask(session, "Hello")
    assert not re.search(r"\x1b\[[0-9;]*m", session.written)


def test_in_a_pipe_lines_are_messages_and_nothing_but_text_comes_out():
    code, out, err = run("chat", "demo", "--seed", 1, "--max-tokens", 30, stdin="Tell me a story about a fox\n\nAnd a bear\n")
    assert code == 0
    assert "\x1b" not in out and "\x1b" not in err
    assert "> " not in out
    assert out.count("\n\n") >= 1 and len(out.split()) > 20


def test_in_a_pipe_control_characters_are_visible_too():
    code, out, _ = run("chat", EXAMPLE, "--seed", 1, "--temperature", 2, "--max-tokens", 300, stdin="Hello\n")
    assert code == 0
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", out)


def test_in_a_pipe_control_c_ends_the_program():
    process = subprocess.Popen([BINARY, "chat", "demo"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=environment())
    process.stdin.write(b"Tell me a long story\n")
    process.stdin.flush()
    os.read(process.stdout.fileno(), 100)  # it has begun to answer
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and b"interrupted" in err


def test_a_model_that_is_not_there_is_exit_code_3():
    code, out, err = run("chat", "/nonexistent/model", stdin="")
    assert (code, out) == (3, "")
    assert err.startswith("error: ") and "/nonexistent/model" in err


# --- tools

def test_tools_are_offered_and_faults_in_their_file_are_named(tmp_path):
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]))
    model = shutil.copytree(EXAMPLE, tmp_path / "model")
    shutil.copy(PARITY.parent / "chat_templates" / "xml_tools.jinja", model / "chat_template.jinja")
    say = lambda *more: run("chat", model, "--seed", 1, "--max-tokens", 20, *more, stdin="Tell me a story\n")
    code, offered, _ = say("--tools", tools)
    assert code == 0 and offered and offered != say()[1]  # the prompt tells of them
    plain = shutil.copytree(EXAMPLE, tmp_path / "plain")
    (plain / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    code, _, err = run("chat", plain, "--tools", tools, stdin="")
    assert code == 2 and "in no form that is known here" in err
    for text, told in (("[", "tools.json"), ("[]", "has no tools"), ('[{"type": "browser"}]', "tools[0].type"), ('{"a": 1}', "array of functions")):
        tools.write_text(text)
        code, _, err = say("--tools", tools)
        assert code == 2 and told in err, err
    code, _, err = say("--tools", tmp_path / "none.json")
    assert code in (1, 2, 3) and "none.json" in err


OPEN_CALL = "' -}}{%- if messages[-1].role == 'user' -%}{{- '<|channel|>commentary to=functions.look <|constrain|>json<|message|>' -}}{%- endif -%}{{- '"


@pytest.fixture
def caller(tmp_path):
    """A model that calls look whenever it is asked something, and a file with that tool."""
    (tmp_path / "model").mkdir()
    write_opened_demo(tmp_path / "model", OPEN_CALL)
    (tmp_path / "tools.json").write_text(json.dumps([{"type": "function", "function": {"name": "look", "description": "Looks."}}]))
    return tmp_path / "model", tmp_path / "tools.json"


def test_a_call_is_shown_and_what_is_typed_next_is_its_result(chat, caller):
    model, tools = caller
    session = chat("--tools", tools, "--max-tokens", 60, model=model)

    def ask():
        session.send("/seed 2\r")  # with which it says little
        session.expect("seed 2\n> ")
        session.send("Is a frog green?\r")
        return session.expect("look returns> ")

    shown = ask()
    assert re.search(r"call: look\([A-Z][^\n]+\)\n", shown), shown
    session.send("a green frog\r")
    session.expect("a green frog")
    assert re.search(r"\w{2,}", session.expect("\n> "))  # it answers with the result in its prompt
    session.send("/reset\r")
    session.expect("starts anew\n> ")
    ask()
    session.send("/reset\r")  # no result is waited for any more
    session.expect("starts anew\n> ")
    session.send("/exit\r")
    assert session.wait() == 0


def test_in_a_pipe_the_next_line_is_the_calls_result(caller):
    model, tools = caller
    say = lambda stdin: run("chat", model, "--tools", tools, "--seed", 2, "--max-tokens", 60, stdin=stdin)
    code, out, err = say("Is a frog green?\na green frog\n")
    assert code == 0 and out.count("call: look(") == 1 and out.index("call: look(") < len(out.rstrip().rpartition("\n")[0]), (out, err)
    assert say("Is a frog green?\n")[0] == 0
