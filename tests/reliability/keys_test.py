"""Keys with names, and files that are read again at SIGHUP."""
import http.client
import json
import os
import pty
import shutil
import signal
import socket
import ssl
import stat
import subprocess

import pytest

from nibble_program import BINARY, ROOT, environment
from watched_server import Answer, Server, eventually, read_all, request_bytes, serving

TLS = ROOT / "tests/data/tls"


def status(server, key):
    return server.ask("GET", "/v1/models", Authorization=f"Bearer {key}").status


def started(*arguments, **more):
    server = Server(*arguments, ready=False, **more)
    url = server.process.stdout.readline().strip()
    assert url, server.log()
    if not url.startswith("unix:"):
        server.port = int(url.rsplit(":", 1)[1])
    return server


@pytest.mark.parametrize("more", [[], ["--no-supervise"]])
def test_keys_are_read_again_at_sighup_and_a_broken_file_keeps_the_old_ones(tmp_path, more):
    keys = tmp_path / "keys"
    keys.write_text("# ours\nalice: sk-alice\nsk-nobody\n")
    server = started("--api-key-file", keys, "--api-key", "sk-single", *more)
    for key, expected in (("sk-alice", 200), ("sk-nobody", 200), ("sk-single", 200), ("sk-bob", 401), ("alice", 401), ("", 401)):
        assert status(server, key) == expected, key
    keys.write_text("bob: sk-bob\n")
    assert status(server, "sk-bob") == 401, "not before it is told to"
    server.signal(signal.SIGHUP)
    eventually(lambda: status(server, "sk-bob") == 200)
    assert (status(server, "sk-alice"), status(server, "sk-single")) == (401, 200)
    for broken in ("bob: sk bob\n", "", "# none\n", "a: x\na: y\n"):
        keys.write_text(broken)
        before = server.log().count("the old ones stay")
        server.signal(signal.SIGHUP)
        eventually(lambda: server.log().count("the old ones stay") > before)
        assert status(server, "sk-bob") == 200, broken
    keys.unlink()
    server.signal(signal.SIGHUP)
    eventually(lambda: "keys" in server.log().splitlines()[-1] and "No such file" in server.log())
    assert status(server, "sk-bob") == 200
    log = server.log()
    assert 'key="alice"' in log and 'key="line-3"' in log and 'key="api-key"' in log and 'key="bob"' in log
    assert "sk-" not in log, "a key is never shown"
    assert server.stop() == 0


def test_the_next_engine_has_the_keys_that_were_read_last(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice: sk-alice\n")
    server = started("--api-key-file", keys)
    keys.write_text("bob: sk-bob\n")
    server.signal(signal.SIGHUP)
    eventually(lambda: status(server, "sk-bob") == 200)
    keys.write_text("broken line\n")
    server.signal(signal.SIGHUP)
    os.kill(server.engine(), signal.SIGKILL)
    eventually(lambda: "it is started again" in server.log())
    eventually(lambda: status(server, "sk-bob") == 200, 60)
    assert status(server, "sk-alice") == 401
    assert server.stop() == 0


def test_a_broken_key_file_is_refused_at_the_start(tmp_path):
    keys = tmp_path / "keys"
    for text in ("", "a: sk-secret\nb: sk secret"):
        keys.write_text(text)
        server = Server("--api-key-file", keys, ready=False)
        assert server.process.wait(timeout=60) == 2 and "--api-key-file" in server.log() and "sk-" not in server.log()
        server.process.stdout.close()
    server = Server("--api-key-file", tmp_path / "none", ready=False)
    assert server.process.wait(timeout=60) == 2 and "--api-key-file" in server.log()
    server.process.stdout.close()


@pytest.mark.parametrize("more", [[], ["--no-supervise"]])
def test_sighup_harms_no_server_that_has_nothing_to_read_again(more):
    server = started(*more)
    server.signal(signal.SIGHUP)
    eventually(lambda: "to read again" in server.log())
    assert server.ask("GET", "/health").status == 200 and server.stop() == 0


@pytest.mark.parametrize("more", [[], ["--no-supervise"]])
def test_a_server_ends_with_its_terminal(tmp_path, more):
    ours, theirs = pty.openpty()
    command = [BINARY, "serve", "demo", "--host", f"unix:{tmp_path}/s", *more]
    process = subprocess.Popen(list(map(str, command)), stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment())
    os.close(theirs)
    assert process.stdout.readline().startswith("unix:")
    process.send_signal(signal.SIGHUP)  # of somebody's, while the terminal is there
    assert ask_file(tmp_path / "s", request_bytes("GET", "/health", Connection="close")).status == 200
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 0 and list(tmp_path.iterdir()) == []
    process.stdout.close()


def test_sighup_to_parent_and_child_alike_reads_once(tmp_path):
    (tmp_path / "keys").write_text("alice: sk-alice\n")
    server = started("--api-key-file", tmp_path / "keys")
    for pid in (server.process.pid, *server.children()):
        os.kill(pid, signal.SIGHUP)
    eventually(lambda: "read again" in server.log())
    assert status(server, "sk-alice") == 200 and server.log().count("read again") == 1
    assert server.stop() == 0


def served_certificate(port):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=30) as plain, context.wrap_socket(plain) as secure:
        return secure.getpeercert(binary_form=True)


def test_certificates_are_read_again_at_sighup(tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(TLS / "localhost.pem", certificate)
    shutil.copy(TLS / "localhost.key", key)
    server = started("--ssl-certfile", certificate, "--ssl-keyfile", key)
    first = served_certificate(server.port)
    context = ssl.create_default_context(cafile=TLS / "localhost.pem")
    open_connection = http.client.HTTPSConnection("localhost", server.port, context=context, timeout=60)
    open_connection.request("GET", "/version")
    assert open_connection.getresponse().read()
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=next",
                    "-keyout", key, "-out", tmp_path / "next.pem"], check=True, capture_output=True)
    server.signal(signal.SIGHUP)  # between the two files: they do not fit
    eventually(lambda: "the old one stays" in server.log())
    assert served_certificate(server.port) == first
    shutil.copy(tmp_path / "next.pem", certificate)
    server.signal(signal.SIGHUP)
    eventually(lambda: served_certificate(server.port) != first)
    open_connection.request("GET", "/version")  # who was connected stays so
    assert open_connection.getresponse().read()
    open_connection.close()
    assert server.stop() == 0


def listens(path):
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


def ask_file(path, data):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(path))
        connection.sendall(data)
        return Answer(read_all(connection))


@pytest.mark.parametrize("more", [[], ["--no-supervise"]])
def test_a_unix_socket_is_served_and_goes_with_the_server(tmp_path, more):
    path = tmp_path / "nibble.sock"
    for mode, options in ((0o600, []), (0o660, ["--socket-mode", "660"])):
        server = started("--host", f"unix:{path}", *options, *more)
        assert stat.S_IMODE(path.stat().st_mode) == mode and "warning" not in server.log()
        ask = ["curl", "-s", "--unix-socket", path, "http://anything.example/v1/completions", "-H", "Content-Type: application/json", "-d",
               '{"prompt": "Once", "max_tokens": 4}']
        assert json.loads(subprocess.run(ask, check=True, capture_output=True, timeout=60).stdout)["usage"]["completion_tokens"] == 4
        eventually(lambda: f'client="unix:uid={os.getuid()}"' in server.log())
        second = Server("--host", f"unix:{path}", ready=False)
        assert second.process.wait(timeout=60) == 1 and "another server listens" in second.log()
        second.process.stdout.close()
        assert server.stop() == 0
        assert list(tmp_path.iterdir()) == []


def test_a_unix_socket_survives_the_engine_and_a_stale_one_is_replaced(tmp_path):
    path = tmp_path / "nibble.sock"
    server = started("--host", f"unix:{path}")
    os.kill(server.engine(), signal.SIGKILL)
    eventually(lambda: "it is started again" in server.log())
    eventually(lambda: ask_file(path, request_bytes("GET", "/health", Connection="close")).status == 200, 60)
    server.process.kill()
    server.process.wait()
    server.process.stdout.close()
    eventually(lambda: not listens(path), what="its engine, which listens too, ends with it")
    assert path.exists(), "a killed server leaves its file"
    server = started("--host", f"unix:{path}")
    assert ask_file(path, request_bytes("GET", "/health", Connection="close")).status == 200
    server.signal(signal.SIGINT)
    assert server.process.wait(timeout=60) == 0 and not path.exists()
    server.process.stdout.close()


def test_a_unix_socket_does_not_take_a_files_place(tmp_path):
    (tmp_path / "file").write_text("precious")
    server = Server("--host", f"unix:{tmp_path}/file", ready=False)
    assert server.process.wait(timeout=60) == 2 and "no socket" in server.log()
    server.process.stdout.close()
    assert (tmp_path / "file").read_text() == "precious"
