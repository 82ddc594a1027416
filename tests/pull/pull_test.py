"""`nibble pull` against a stand-in for the hub: what it fetches, and what it makes of everything that can go wrong."""
import json
import os
import random
import re
import signal
import time

import pytest
from hub import ConnectProxy, Hub, Repository, dies_after, drips, git_blob, raw, status
from pulling import COMMIT, WANTED, Puller, content_of, example_files, kill
from terminal_session import TerminalSession

from nibble_program import ROOT

MiB = 1 << 20


def shards(sizes, seed=1):
    """The example's small files beside weights of random bytes in several files with an index."""
    source = random.Random(seed)
    files = {name: data for name, data in example_files().items() if name != "model.safetensors"}
    names = [f"model-{i + 1:05}-of-{len(sizes):05}.safetensors" for i in range(len(sizes))]
    files |= {name: source.randbytes(size) for name, size in zip(names, sizes)}
    files["consolidated.safetensors"] = b"c" * 100
    files["model.safetensors.index.json"] = json.dumps({"weight_map": {f"t{i}": name for i, name in enumerate(names)}}).encode()
    return files


def set_files(hub, files, commit=COMMIT):
    hub.repositories["org/name"] = Repository({commit: files}, {"main": commit})


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


# What goes wrong on the way

TOO_MANY = status(429, Retry_After=1)


@pytest.mark.parametrize("pattern", ["^hub/api/.*/revision/", "^hub/api/.*/tree/", "^hub/org/name/resolve/", "^cdn/"])
@pytest.mark.parametrize("act", [TOO_MANY, status(503), status(500), dies_after(40), raw(b""),
                                 raw(b"SSH-2.0-OpenSSH\r\n\r\n"), raw(b"HTTP/1.1 200 OK\r\nContent-Le")],
                         ids=["429", "503", "500", "dies", "closes", "no-http", "half-a-head"])
def test_what_passes_is_tried_again(hub, puller, pattern, act):
    hub.fail(pattern, act, times=2)
    begin = time.monotonic()
    folder = puller.pull("--connections", "1")
    assert content_of(folder, WANTED) == {name: example_files()[name] for name in WANTED}
    assert all(fault.times == 0 for fault in hub.faults)
    if act is TOO_MANY:
        assert time.monotonic() - begin > 1.9, "it waits as long as it is asked to"


def test_what_does_not_pass_is_given_up_with_a_sentence(hub, puller):
    hub.fail("^cdn/", status(429, Retry_After=10_000), times=99)
    assert "asks for a pause" in puller.refused(code=1)
    hub.faults.clear()
    hub.fail("/revision/", status(418), times=99)
    assert "the hub answers 418" in puller.refused(code=1)


def test_connections_that_die_bring_it_forward_nonetheless(hub, puller):
    files = shards([3 * MiB + 77])
    set_files(hub, files)
    hub.fail("^cdn/", dies_after(200_000), times=12)
    folder = puller.pull("--connections", "2", timeout=200)
    name = "model-00001-of-00001.safetensors"
    assert content_of(folder, [name]) == {name: files[name]}
    # Each try goes on where the one before broke off.
    starts = {int(re.match(r"bytes=(\d+)", headers["Range"])[1]) for _, headers in hub.asked("cdn") if "Range" in headers}
    assert len([start for start in starts if start % MiB]) >= 6


def test_a_server_without_ranges_gives_whole_files(hub, puller):
    files = shards([5 * MiB + 1, 100_000])
    set_files(hub, files)
    hub.no_ranges = True
    folder = puller.pull()
    names = [name for name in files if name.startswith("model-")]
    assert content_of(folder, names) == {name: files[name] for name in names}


def test_an_address_that_has_expired_is_asked_for_again(hub, puller):
    files = shards([6 * MiB])
    set_files(hub, files)

    def expire(handler):
        hub.oldest_signature = hub.signature + 1
    hub.fail("^cdn/", expire, times=1)
    folder = puller.pull("--connections", "1")
    name = "model-00001-of-00001.safetensors"
    assert content_of(folder, [name]) == {name: files[name]}


def test_wrong_bytes_are_no_blob(hub, puller):
    hub.change_content = lambda path, content: content[:-1] + b" " if path == "tokenizer.json" else content
    error = puller.refused(code=1)
    assert '"tokenizer.json"' in error and "git blob" in error
    hub.change_content = lambda path, content: content[:-1] + b"\0" if path == "model.safetensors" else content
    error = puller.refused(code=1)
    assert '"model.safetensors"' in error and "sha256" in error
    hub.change_content = lambda path, content: content
    puller.pull()


@pytest.mark.parametrize("path", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("change", [lambda content: content + b"x", lambda content: content[:-1], lambda content: b""],
                         ids=["longer", "shorter", "empty"])
def test_a_wrong_length_is_no_blob(hub, puller, path, change):
    hub.change_content = lambda file, content: change(content) if file == path else content
    assert f'"{path}"' in puller.refused(code=1)


def test_what_nobody_asked_for_is_refused(hub, puller):
    def compressed(handler):
        handler.send(200, b"\x1f\x8b", Content_Encoding="gzip")
        return True
    hub.fail("resolve/.*/config.json", compressed, times=99)
    assert "compressed" in puller.refused(code=1)
    hub.faults.clear()
    set_files(hub, shards([4 * MiB]))

    def other_part(handler):
        handler.send(206, b"x" * 10, Content_Range=f"bytes 7-16/{4 * MiB}")
        return True
    hub.fail("^cdn/", other_part, times=99)
    assert "another part" in puller.refused(code=1)


def test_silence_and_drips_end(hub, puller):
    begin = time.monotonic()
    hub.fail("/revision/", raw(b"", then=30), times=1)
    hub.fail("/tree/", drips(b"HTTP/1.1 200 OK\r\n" + b"X" * 1000, 0.2, 30), times=1)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1490752\r\n\r\n"
    hub.fail("^cdn/", lambda handler: raw(head)(handler) and drips(b"", 0.2, 30)(handler), times=1)
    puller.pull(HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert time.monotonic() - begin < 25


@pytest.mark.extended
def test_an_answer_that_ends_early_each_time_is_given_up(hub, puller):
    files = shards([3 * MiB])
    set_files(hub, files)
    hub.no_ranges = True
    part = files["model-00001-of-00001.safetensors"][:MiB + 200_000]
    hub.fail("^cdn/", raw(b"HTTP/1.0 200 OK\r\n\r\n" + part), times=999)
    assert "ends before its end" in puller.refused(code=1, timeout=200)
    assert len(hub.asked("cdn")) < 40
    hub.faults.clear()
    hub.fail("resolve/.*/tokenizer.json", raw(b"HTTP/1.0 200 OK\r\n\r\n{"), times=999)
    (puller.cache / "models--org--name/blobs" / hub.repositories["org/name"].blob("tokenizer.json", files["tokenizer.json"])).unlink()
    assert '"tokenizer.json" ends before its end' in puller.refused(code=1, timeout=200)


@pytest.mark.extended
def test_endless_answers_are_bounded(hub, puller):
    def endless(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(100):
            handler.wfile.write(b" " * MiB)
        return True
    hub.fail("/revision/", endless, times=99)
    assert "longer than" in puller.refused(code=1)
    hub.faults.clear()
    hub.fail("/tree/", lambda handler: [handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n") for _ in range(1000)], times=99)
    assert "interim" in puller.refused(code=1, timeout=200)


def test_redirects_are_bounded_and_never_leave_http(hub, puller):
    hub.redirect = hub.url + "/org/name/resolve/main/model.safetensors"
    assert "sends on and on" in puller.refused(code=1)
    hub.redirect = "file:///etc/passwd"
    assert "no http or https address" in puller.refused(code=1)


@pytest.mark.parametrize("path", ["../../../escaped", "/etc/passwd", "a/../../x.safetensors", "a//b", "x\n.json", "..", "a\\b",
                                  "", "x" * 300, "\u202econfig.json"])
def test_a_hostile_name_is_refused(hub, puller, tmp_path, path):
    hub.change_tree = lambda entries: entries + [{"type": "file", "path": path, "size": 1, "oid": git_blob(b"x")}]
    error = puller.refused(code=1)
    assert "which no folder can hold" in error and "\n" not in error
    assert sorted(os.listdir(tmp_path)) in ([], ["hub"])


@pytest.mark.parametrize("change", [
    lambda entry: entry | {"oid": "../../x"}, lambda entry: entry | {"size": -1}, lambda entry: entry | {"size": 1 << 60},
    lambda entry: entry | {"lfs": {"oid": "ab", "size": 1}}, lambda entry: {"type": "file"}, lambda entry: 7, lambda entry: None,
    lambda entry: entry | {"size": "1"}])
def test_a_hostile_entry_is_refused(hub, puller, change):
    hub.change_tree = lambda entries: [change(entry) if entry.get("path") == "config.json" else entry for entry in entries]
    assert "listing cannot be used" in puller.refused(code=1)


def test_a_commit_that_is_none_is_refused(hub, puller):
    for body in (b'{"sha": "../../x"}', b"{}", b"[" * 1000, b"", b'{"sha": 7}', b"\xff"):
        hub.faults.clear()

        def odd(handler, body=body):
            handler.send(200, body)
            return True
        hub.fail("/revision/", odd, times=9)
        assert "listing cannot be used" in puller.refused(code=1)


def test_a_listing_may_not_go_on_at_another_host(hub, puller):
    def away(handler):
        handler.send(200, b"[]", Link=f'<{hub.cdn_url}/x>; rel="next"')
        return True
    hub.fail("/tree/", away, times=9)
    assert "another host" in puller.refused(HF_TOKEN="reader", code=1) and not hub.asked("cdn")


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


# TLS and proxies

@pytest.fixture
def secure(tmp_path):
    hub = Hub(tls=True)
    hub.repositories["org/name"] = Repository({COMMIT: shards([5 * MiB])}, {"main": COMMIT})
    puller = Puller(hub, tmp_path)
    puller.variables["SSL_CERT_FILE"] = str(ROOT / "tests/data/tls/localhost.pem")
    yield hub, puller
    hub.close()


def test_tls_is_spoken_and_certificates_are_checked(secure):
    hub, puller = secure
    error = puller.refused(SSL_CERT_FILE=None, code=1)
    assert "the certificate of \"localhost\" is not trusted" in error and "SSL_CERT_FILE" in error
    assert "holds no certificates" in puller.refused(SSL_CERT_FILE="/dev/null", code=2)
    # The same certificate on a server whose address it does not name.
    other = Hub(tls=True, address="127.0.0.2")
    error = puller.refused(HF_ENDPOINT=other.url, code=1)
    assert 'the certificate of "127.0.0.2" is not trusted' in error and not hub.requests and not other.requests
    other.close()
    puller.pull(HF_ENDPOINT=hub.url.replace("localhost", "127.0.0.1"))
    assert hub.asked("cdn")


def test_a_redirect_may_not_lose_encryption(secure):
    hub, puller = secure
    hub.redirect = hub.cdn_url.replace("https", "http") + "/x"
    assert "without encryption" in puller.refused(code=1)


def test_connections_that_die_under_tls_are_taken_up(secure):
    hub, puller = secure
    hub.fail("^cdn/", dies_after(300_000), times=3)
    puller.pull()


def test_a_proxy_is_asked_to_connect(secure):
    hub, puller = secure
    proxy = ConnectProxy(password="Basic bWU6cDpAc3M=")
    address = f"127.0.0.1:{proxy.port}"
    error = puller.refused(https_proxy=f"http://{address}", code=2)
    assert "asks for a user and a password" in error
    puller.pull(HTTPS_PROXY=f"http://me:p%3A%40ss@{address}")
    assert {method for method, _ in proxy.targets} == {"CONNECT"}
    assert {target for _, target in proxy.targets} == {url.removeprefix("https://") for url in (hub.url, hub.cdn_url)}
    assert not [1 for _, headers in hub.asked("hub") if "Proxy-Authorization" in headers]
    proxy.targets.clear()
    puller.pull(https_proxy=f"http://{address}", no_proxy="other.example, localhost")
    assert not proxy.targets
    proxy.close()


def test_a_plain_hub_is_asked_through_a_proxy_by_its_whole_address(hub, puller):
    proxy = ConnectProxy()
    puller.pull(http_proxy=f"127.0.0.1:{proxy.port}")
    assert all(method == "GET" and target.startswith((hub.url, hub.cdn_url)) for method, target in proxy.targets)
    assert proxy.targets
    proxy.close()


def test_a_proxy_that_cannot_be_used_is_named_without_its_password(puller):
    error = puller.refused(http_proxy="socks5://me:secret@127.0.0.1:1", code=2)
    assert "the variable http_proxy" in error and "secret" not in error


# Interruptions

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
