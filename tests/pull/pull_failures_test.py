"""`nibble pull` where the hub fails, answers wrongly, or lies."""
import os
import re
import time

import pytest
from hub import dies_after, drips, git_blob, raw, status
from pulling import MiB, WANTED, content_of, example_files, set_files, shards


TOO_MANY = status(429, Retry_After=1)


@pytest.mark.some(4)
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


@pytest.mark.some(2)
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


@pytest.mark.some(4)
@pytest.mark.parametrize("path", ["../../../escaped", "/etc/passwd", "a/../../x.safetensors", "a//b", "x\n.json", "..", "a\\b",
                                  "", "x" * 300, "\u202econfig.json"])
def test_a_hostile_name_is_refused(hub, puller, tmp_path, path):
    hub.change_tree = lambda entries: entries + [{"type": "file", "path": path, "size": 1, "oid": git_blob(b"x")}]
    error = puller.refused(code=1)
    assert "which no folder can hold" in error and "\n" not in error
    assert sorted(os.listdir(tmp_path)) in ([], ["hub"])


@pytest.mark.some(3)
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
