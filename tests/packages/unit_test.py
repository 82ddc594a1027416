"""The systemd unit and the configuration that it reads."""
import re
import shutil
import signal
import socket
import subprocess
import urllib.request

import pytest

from nibble_program import BINARY, ROOT, environment, run

UNIT = ROOT / "packaging/nibble.service"
CONFIG = ROOT / "packaging/nibble.conf"


def test_the_unit_is_as_closed_as_the_documentation_says():
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=30", UNIT], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    score = re.search(r"exposure level for nibble.service: ([\d.]+)", done.stdout)[1]
    assert float(score) < 3
    assert f"says {score}" in (ROOT / "docs/operations.md").read_text()


def test_every_line_of_the_configuration_is_an_option_of_serve(tmp_path):
    """Those that are commented out as well, with values that they take."""
    text = re.sub(r"^#([a-z-]+ = )", r"\1", CONFIG.read_text(), flags=re.M)
    assert text.count("\nport = ") == 1
    whole = tmp_path / "whole.conf"
    # TLS files that are not there would be looked for; the names are known all the same.
    whole.write_text(re.sub(r"^(ssl-certfile) = .*", r"\1 =", text, flags=re.M))
    code, _, err = run("serve", "--config", whole, NIBBLE_HOST="256.0.0.1")
    assert code != 0 and "ssl-certfile" in err and str(whole) not in err, err


def test_the_manager_is_told_when_the_model_is_loaded_and_when_the_service_ends(tmp_path):
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(60)
    config = tmp_path / "nibble.conf"
    config.write_text(CONFIG.read_text() + "port = 0\n")
    process = subprocess.Popen([BINARY, "serve", "--config", config], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               env=environment(NOTIFY_SOCKET=str(tmp_path / "notify")))
    try:
        assert manager.recv(100) == b"READY=1"
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(url + "/health", timeout=30) as answer:
            assert answer.status == 200
        assert run("health", url)[:2] == (0, "ok\n")
        assert run("health", "--port", url.rsplit(":", 1)[1])[:2] == (0, "ok\n")
        process.send_signal(signal.SIGTERM)
        assert manager.recv(100) == b"STOPPING=1"
        assert process.wait(timeout=60) == 0
        code, out, err = run("health", url)
        assert (code, out) == (1, "") and err.startswith(f"error: {url}: ") and "refused" in err
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("url, code", [("https://127.0.0.1", 2), ("nonsense", 2), ("http://127.0.0.1:1", 1), ("http://no.such.host.invalid", 1)])
def test_health_of_what_is_no_server_is_one_line(url, code):
    got, out, err = run("health", url)
    assert (got, out) == (code, "") and err.count("\n") == 1 and err.startswith("error: "), err


def test_health_does_not_wait_for_ever():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        got, _, err = run("health", f"http://127.0.0.1:{silent.getsockname()[1]}", "--timeout", 1, timeout=30)
        assert got == 1 and "no answer within 1 s" in err
