"""`nibble pull` against a stand-in for the hub: what it fetches, where to, and how it is interrupted and goes on."""
import json
import os
import random
import re
import signal
import time

import pytest
from hub import Hub, Repository
from pulling import COMMIT, MiB, WANTED, Puller, content_of, example_files, kill, set_files, shards
from terminal_session import TerminalSession


def test_it_fetches_what_nibble_needs_and_nothing_else(hub, puller):
    folder = puller.pull()
    files = example_files()
    assert sorted(os.listdir(folder)) == WANTED
    assert content_of(folder, WANTED) == {name: files[name] for name in WANTED}
    for name in WANTED:
        assert os.readlink(os.path.join(folder, name)) == "../../blobs/" + hub.repositories["org/name"].blob(name, files[name])
    assert (puller.cache / "models--org--name/refs/main").read_text() == COMMIT
    assert (puller.cache / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert not [name for name in puller.blobs() if "incomplete" in name]
    assert not hub.asked("hub", "README|original|metal|gguf")


def test_it_runs_what_it_pulled(puller):
    puller.pull()
    code, out, err = puller.run("generate", "org/name", "--prompt-ids", "1,2,3", "--max-tokens", "2", "--json")
    assert code == 0 and len(json.loads(out)["token_ids"]) == 2, err


def test_a_second_pull_asks_for_the_listing_alone(hub, puller):
    puller.pull()
    hub.requests.clear()
    code, _, err = puller.run("pull", "org/name")
    assert code == 0 and "already here" in err
    assert not hub.asked("cdn") and not hub.asked("hub", "resolve")


def test_parts_of_large_files_come_side_by_side(hub, puller):
    files = shards([9 * MiB + 5, 3 * MiB, 70_000])
    set_files(hub, files)
    hub.delay = 0.02
    folder = puller.pull("--connections", "6")
    names = [name for name in files if re.match(r"model-", name)]
    assert content_of(folder, names) == {name: files[name] for name in names}
    assert "consolidated.safetensors" not in os.listdir(folder)
    assert hub.most_open >= 3
    assert [headers for _, headers in hub.asked("cdn") if "Range" in headers]
    # The hub is asked once or so for each file and connection: the address it gives is used for the other parts.
    assert len(hub.asked("hub", "resolve/.*model-")) <= 3 * 6


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub, puller):
    other = "7" * 40
    files = example_files()
    hub.repositories["org/name"].commits[other] = files | {"tokenizer_config.json": b'{"model_max_length": 7}'}
    hub.repositories["org/name"].refs["refs/pr/1"] = other
    puller.pull()
    code, out, err = puller.run("pull", "org/name@refs/pr/1")
    assert code == 0 and out.strip().endswith(other), err
    assert (puller.cache / "models--org--name/refs/refs/pr/1").read_text() == other
    assert len(puller.blobs()) == len(WANTED) + 1, "contents that revisions share are there once"
    code, out, err = puller.run("pull", f"org/name@{COMMIT}")
    assert code == 0 and out.strip().endswith(COMMIT) and "already here" in err
    assert sorted(os.listdir(puller.cache / "models--org--name/refs")) == ["main", "refs"]
    code, out, err = puller.run("inspect", "org/name@refs/pr/1", "--json")
    assert json.loads(out)["folder"].endswith(other), err


def test_the_listing_may_have_pages(hub, puller):
    hub.page_entries = 3
    assert sorted(os.listdir(puller.pull())) == WANTED
    assert len(hub.asked("hub", "/tree/")) == 5


def test_a_hub_may_lie_below_a_path(tmp_path):
    hub = Hub(prefix="/mirror/hf")
    hub.repositories["org/name"] = Repository({COMMIT: example_files()}, {"main": COMMIT})
    puller = Puller(hub, tmp_path)
    assert sorted(os.listdir(puller.pull(HF_ENDPOINT=hub.url + "/"))) == WANTED
    hub.close()


@pytest.mark.parametrize("variables, place", [
    ({"HF_HUB_CACHE": "{0}/a"}, "a"),
    ({"HF_HUB_CACHE": None, "HF_HOME": "{0}/b"}, "b/hub"),
    ({"HF_HUB_CACHE": None, "HF_HOME": None, "XDG_CACHE_HOME": "{0}/c"}, "c/huggingface/hub"),
    ({"HF_HUB_CACHE": None, "HF_HOME": None, "XDG_CACHE_HOME": None, "HOME": "{0}/d"}, "d/.cache/huggingface/hub"),
])
@pytest.mark.some(2)
def test_the_cache_lies_where_huggingface_hub_has_it(puller, tmp_path, variables, place):
    given = {name: value and value.format(tmp_path) for name, value in variables.items()}
    code, out, err = puller.run("pull", "org/name", **given)
    assert code == 0 and out.startswith(f"{tmp_path}/{place}/models--org--name/"), err
    assert puller.run("inspect", "org/name", **given)[0] == 0


# Tokens

def test_the_token_goes_to_the_hub_and_to_no_other_host(hub, puller):
    hub.repositories["org/name"].gated = True
    puller.pull(HF_TOKEN=" reader\n")
    assert {headers.get("Authorization") for _, headers in hub.asked("hub")} == {"Bearer reader"}
    assert hub.asked("cdn") and not [1 for _, headers in hub.asked("cdn") if "Authorization" in headers]


def test_the_token_may_lie_in_a_file(hub, puller, tmp_path):
    hub.repositories["org/name"].gated = True
    (tmp_path / "home").mkdir()
    (tmp_path / "home/token").write_text("reader\n")
    puller.pull()
    hub.repositories["org/name"].gated = False
    hub.requests.clear()
    (tmp_path / "other").write_text("stranger")
    puller.pull(HF_TOKEN_PATH=str(tmp_path / "other"))
    assert hub.asked("hub")[0][1]["Authorization"] == "Bearer stranger"
    puller.pull(HF_HUB_DISABLE_IMPLICIT_TOKEN="1")
    assert "Authorization" not in hub.asked("hub")[-1][1]


def test_a_token_that_is_none_is_refused_before_it_is_sent(hub, puller):
    error = puller.refused(HF_TOKEN="a\r\nX: y", code=2)
    assert "what HF_TOKEN holds is no token" in error and "X: y" not in error and not hub.requests


def test_no_error_shows_the_token(hub, puller):
    hub.repositories.clear()
    assert "secret" not in puller.refused(HF_TOKEN="secret")


# What a hub refuses

def test_a_gated_model_says_what_to_do(hub, puller):
    hub.repositories["org/name"].gated = True
    error = puller.refused()
    assert f"accept its terms at {hub.url}/org/name" in error and "set HF_TOKEN" in error
    error = puller.refused(HF_TOKEN="stranger")
    assert f"accept the terms at {hub.url}/org/name" in error and "the token from HF_TOKEN" in error
    error = puller.refused(HF_TOKEN="nobody")
    assert "does not know the token from HF_TOKEN" in error and "/settings/tokens" in error


def test_an_unknown_model_or_revision_is_named(hub, puller):
    assert 'the hub has no model "org/nobody"' in puller.refused(model="org/nobody", code=3)
    assert 'the hub has no model "org/nobody"' in puller.refused(model="org/nobody", code=3, HF_TOKEN="reader")
    assert '"org/name" has no revision "v9"' in puller.refused(model="org/name@v9", code=3)
    hub.repositories["org/name"].private = True
    assert "or it is private" in puller.refused(code=3)
    puller.pull(HF_TOKEN="reader")


@pytest.mark.some(3)
@pytest.mark.parametrize("name", ["gpt2", "org/", "a/b/c", "../b", "org/name@", "org/name@../x", "org/na me", "demo"])
def test_a_name_that_is_none_is_refused(hub, puller, name):
    assert "give org/name" in puller.refused(model=name, code=2) and not hub.requests


def test_a_model_that_nibble_does_not_run_is_refused_before_its_weights(hub, puller):
    files = example_files() | {"config.json": b'{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}'}
    set_files(hub, files)
    error = puller.refused(code=3)
    assert "does not run" in error and "llama" in error.lower() and "--any-model" in error
    assert not hub.asked("cdn")
    puller.pull("--any-model")


def test_a_repository_without_a_checkpoint_is_refused(hub, puller):
    set_files(hub, {"model-Q4.gguf": b"g", "README.md": b""})
    assert "GGUF" in puller.refused(code=3)
    set_files(hub, {"config.json": b"{}", "pytorch_model.bin": b""})
    assert "no weights in safetensors" in puller.refused(code=3)
    files = shards([100, 200])
    del files["model-00002-of-00002.safetensors"]
    set_files(hub, files)
    assert '"model-00002-of-00002.safetensors"' in puller.refused(code=3)


def test_without_the_network_nothing_is_tried(hub, puller):
    assert "HF_HUB_OFFLINE is set" in puller.refused(HF_HUB_OFFLINE="1", code=2) and not hub.requests


def test_a_disk_without_room_is_seen_first(hub, puller):
    size = 1 << 49

    def enormous(entries):
        return [entry | {"lfs": {"oid": "a" * 64, "size": size}} if entry["path"] == "model.safetensors" else entry
                for entry in entries]
    hub.change_tree = enormous
    error = puller.refused(code=1)
    assert str(size) in error and "has room for" in error and not hub.asked("cdn")


@pytest.mark.extended
def test_no_server_is_a_sentence(puller, hub):
    hub.close()
    assert "Connection refused" in puller.refused(code=1, timeout=200)


def test_a_pull_that_is_killed_at_any_moment_goes_on(hub, puller):
    files = shards([6 * MiB + 3, 2 * MiB], seed=5)
    set_files(hub, files)
    hub.delay = 0.03
    source = random.Random(7)
    for _ in range(8):
        process = puller.start("pull", "org/name", "--connections", "3")
        time.sleep(source.uniform(0.02, 0.5))
        kill(process)
        repository = puller.cache / "models--org--name"
        if (repository / "refs/main").exists():
            break
    folder = puller.pull()
    names = [name for name in files if name.startswith("model-")]
    assert content_of(folder, names) == {name: files[name] for name in names}
    assert not [name for name in puller.blobs() if "incomplete" in name]


def fetch_some(hub, puller, requests):
    """A pull of 8 MiB by one connection, killed when the host of large files has had some requests."""
    files = shards([8 * MiB], seed=6)
    set_files(hub, files)
    hub.delay = 0.1
    process = puller.start("pull", "org/name", "--connections", "1")
    deadline = time.monotonic() + 60
    while len(hub.asked("cdn")) < requests and time.monotonic() < deadline:
        time.sleep(0.01)
    kill(process)
    hub.delay = 0
    rest, = (puller.cache / "models--org--name/blobs").glob("*.nibble.incomplete")
    return files, rest


def test_what_came_before_a_kill_is_not_fetched_again(hub, puller):
    files, rest = fetch_some(hub, puller, requests=4)
    kept = rest.read_bytes()[8 * MiB:].count(1)
    assert kept >= 4
    code, out, _ = puller.run("list")
    assert code == 0 and "unfinished download" in out and "nibble pull org/name" in out
    hub.requests.clear()
    folder = puller.pull("--connections", "1")
    ranges = [re.match(r"bytes=(\d+)-(\d+)", headers["Range"]) for _, headers in hub.asked("cdn")]
    assert sum(int(part[2]) - int(part[1]) + 1 for part in ranges) == (8 - kept) * MiB
    name = "model-00001-of-00001.safetensors"
    assert content_of(folder, [name]) == {name: files[name]}


def test_a_damaged_rest_is_fetched_anew(hub, puller):
    files, rest = fetch_some(hub, puller, requests=3)
    with open(rest, "r+b") as file:
        file.seek(17)
        file.write(b"damage")
    code, out, err = puller.run("pull", "org/name")
    assert code == 0 and "damaged; fetching it anew" in err, err
    name = "model-00001-of-00001.safetensors"
    assert content_of(out.strip(), [name]) == {name: files[name]}


def test_ctrl_c_ends_it_and_says_that_it_goes_on(hub, puller):
    set_files(hub, shards([8 * MiB]))
    hub.delay = 0.2
    process = puller.start("pull", "org/name", "--connections", "1")
    deadline = time.monotonic() + 60
    while len(hub.asked("cdn")) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and out == "" and "goes on from here" in err, err
    puller.pull()


def test_two_pulls_at_once_take_turns(hub, puller):
    files = shards([5 * MiB, 5 * MiB])
    set_files(hub, files)
    hub.delay = 0.02
    processes = [puller.start("pull", "org/name") for _ in range(3)]
    answers = [process.communicate(timeout=120) + (process.returncode,) for process in processes]
    assert [code for _, _, code in answers] == [0, 0, 0], answers
    assert sum("already here" in err for _, err, _ in answers) == 2
    assert sum("waiting for it" in err for _, err, _ in answers) == 2
    names = [name for name in files if name.startswith("model-")]
    assert content_of(answers[0][0].strip(), names) == {name: files[name] for name in names}


def test_verify_finds_damage_in_the_cache(hub, puller):
    folder = puller.pull()
    blob = os.path.realpath(os.path.join(folder, "model.safetensors"))
    with open(blob, "r+b") as file:
        file.write(b"damage")
    puller.pull()
    assert open(blob, "rb").read(6) == b"damage", "what is there is believed unless asked"
    code, _, err = puller.run("pull", "org/name", "--verify")
    assert code == 0 and "is damaged" in err
    assert content_of(folder, WANTED) == {name: example_files()[name] for name in WANTED}


# On a terminal


def session(puller, *arguments, **more):
    """The program in a terminal; the session's own environment is under this one."""
    class Session(TerminalSession):
        pass
    variables = puller.environment(**more)
    return Session(*arguments, **variables)


def test_a_terminal_sees_how_far_it_is(hub, puller):
    set_files(hub, shards([40 * MiB]))
    hub.delay = 0.25
    with session(puller, "pull", "org/name", "--connections", "1") as terminal:
        terminal.expect("/s  ", timeout=60)
        terminal.expect("s left", timeout=60)
        terminal.expect("pulled org/name", timeout=120)
        assert terminal.wait() == 0
    assert "pulling org/name" in terminal.text() and " %" in terminal.text()


def test_a_pipe_sees_no_bar(puller):
    code, out, err = puller.run("pull", "org/name")
    assert code == 0 and "\r" not in err and "\x1b" not in err and out.count("\n") == 1 and err.count("\n") == 1


@pytest.mark.parametrize("command", [["generate", "org/name", "--prompt-ids", "1,2,3", "--max-tokens", "1"],
                                     ["serve", "org/name", "--port", "0"], ["chat", "org/name"]])
def test_a_terminal_is_asked_whether_to_pull(hub, puller, command):
    with session(puller, *command) as terminal:
        terminal.expect("[y/N] ")
        terminal.send("n\r")
        terminal.expect('get it with "nibble pull org/name"')
        assert terminal.wait() == 3
    assert not puller.cache.exists()
    with session(puller, *command) as terminal:
        terminal.expect("MB? [y/N] ")
        terminal.send("y\r")
        terminal.expect("pulled org/name")
        if command[0] == "serve":
            terminal.expect("http://")
            terminal.send("\x03")
        elif command[0] == "chat":
            terminal.expect("> ")
            terminal.send("\x04")
        assert terminal.wait() in (0, 130)


def test_ctrl_c_at_the_question_ends_it(puller):
    with session(puller, "generate", "org/name", "--prompt", "x") as terminal:
        terminal.expect("[y/N] ")
        terminal.send("\x03")
        assert terminal.wait() == 130
    assert not puller.cache.exists()


def test_elsewhere_the_command_is_said(hub, puller):
    for command in ("generate", "serve", "chat", "score", "inspect"):
        arguments = {"generate": ["--prompt", "x"], "score": ["/dev/null"], "serve": ["--port", "0"]}.get(command, [])
        code, out, err = puller.run(command, "org/name", *arguments)
        assert code == 3 and 'get it with "nibble pull org/name"' in err, err
    assert not hub.requests
