"""The Debian package, as its user meets it: checked by lintian, installed in a bare root, used, upgraded, purged."""
import contextlib
import os
import re
import shutil
import subprocess
import sys

import pytest

from nibble_program import BINARY, ROOT

pytestmark = pytest.mark.extended


def make_deb(version):
    """The package at its path, under a version of the test's own."""
    done = subprocess.run([ROOT / "tools/make_deb.sh"], capture_output=True, text=True, env=os.environ | {"DEB_VERSION": version, "PROGRAM": str(BINARY)})
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / re.match(r"(build/deb/nibble_\S+\.deb): ", done.stdout)[1]


@pytest.fixture(scope="module")
def packages():
    if not shutil.which("dpkg-shlibdeps"):
        pytest.skip("dpkg-shlibdeps is not installed; tools/packages.txt has it in the group package")
    return [make_deb(version) for version in ("0.2.0~test1", "0.2.0~test2")]


def test_lintian_finds_no_error(packages):
    if not shutil.which("lintian"):
        pytest.skip("lintian is not installed; tools/packages.txt has it in the group extended")
    done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", packages[0]], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_same_tree_gives_the_same_package(packages):
    before = packages[1].read_bytes()
    make_deb("0.2.0~test2")
    assert packages[1].read_bytes() == before


def test_the_package_depends_on_glibc_alone(packages):
    depends = subprocess.run(["dpkg-deb", "--field", packages[0], "Depends"], check=True, capture_output=True, text=True).stdout
    assert re.fullmatch(r"libc6 \(>= [\d.]+\), passwd\n", depends), depends


# Prints its address and serves until it is killed.
DEMO_HUB = """
import threading
from hub import Hub, Repository
from nibble_program import ROOT
hub = Hub()
files = {path.name: path.read_bytes() for path in (ROOT / "models/demo").iterdir()}
hub.repositories["people/tales"] = Repository({"6" * 40: files}, {"main": "6" * 40})
print(hub.url, flush=True)
threading.Event().wait()
"""


class BareRoot:
    """A minimal Debian, with mounts that end with the commands that use them."""

    def __init__(self, folder):
        self.folder = folder
        subprocess.run([ROOT / "tools/bare_root.sh", "--suite", "bookworm", "--root", folder, "--", "true"], check=True)

    def run(self, script, check=True, hub=False):
        """The output of a script in the root; `hub`: with HF_ENDPOINT at a stand-in that has the demo model."""
        mounts = 'mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"; ip link set lo up; root=$1 script=$2; shift 2;' \
                 'if [ $# -gt 0 ]; then read -r HF_ENDPOINT < <(exec "$@"); export HF_ENDPOINT; fi; exec chroot "$root" bash -ec "$script"'
        beside = [sys.executable, "-c", DEMO_HUB] if hub else []
        # A network namespace: the ports are the root's own, and nothing outside is asked. What runs beside ends with the script.
        done = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private", "bash", "-ec", mounts, "bare",
                               self.folder, script, *beside], capture_output=True, text=True, timeout=600,
                              env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8",
                                   "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'tests/pull'}"})
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def bare(packages, tmp_path_factory):
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        pytest.skip("a bare root needs root and debootstrap")
    folder = tmp_path_factory.mktemp("bare")
    root = BareRoot(folder / "root")
    for package in packages:
        shutil.copy(package, folder / "root/tmp")
    yield root
    with contextlib.suppress(FileNotFoundError):
        subprocess.run(["rm", "-rf", "--one-file-system", folder])


def test_a_new_user_installs_serves_asks_and_upgrades(bare):
    assert "Setting up nibble (0.2.0~test1)" in bare.run("dpkg -i /tmp/nibble_0.2.0~test1_*.deb")
    assert bare.run("nibble --version").startswith("nibble 0.2.0\n")
    assert "0" == bare.run("nibble generate demo --prompt 'Once upon a time' --max-tokens 8 >/dev/null; echo -n $?")
    assert "model = demo" in bare.run("cat /etc/nibble/nibble.conf")
    assert "root nibble-conf 750" in bare.run("stat -c '%U %G %a' /etc/nibble")

    # As the unit does, without a systemd to do it: a user of its own in the group that may read the configuration.
    served = bare.run("""
install -d -o 61184 -g 61184 /var/cache/nibble
setpriv --reuid=61184 --regid=61184 --groups=$(getent group nibble-conf | cut -d: -f3) --no-new-privs --bounding-set=-all \
  env HF_HOME=/var/cache/nibble nibble serve --config /etc/nibble/nibble.conf >/tmp/url 2>/tmp/log &
server=$!
for i in $(seq 300); do nibble health 2>/dev/null && break; sleep 0.2; done
exec 3<>/dev/tcp/127.0.0.1/8000
body='{"model":"demo","messages":[{"role":"user","content":"Tell me a story about a fox"}],"max_tokens":8}'
printf 'POST /v1/chat/completions HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Type: application/json\\r\\nContent-Length: %s\\r\\nConnection: close\\r\\n\\r\\n%s' ${#body} "$body" >&3
cat <&3
exec 3<>/dev/tcp/127.0.0.1/8000
printf 'GET / HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' >&3
cat <&3 | tr -d '\\0'
kill $server
wait $server; echo "ended with $?"
""")
    assert served.startswith("ok\n") and '"chat.completion"' in served and "<!doctype html>" in served.lower(), served[:2000]
    assert "ended with 0" in served

    bare.run("sed -i 's/^#max-queue = .*/max-queue = 7/' /etc/nibble/nibble.conf && chmod 0640 /etc/nibble/nibble.conf && chgrp nibble-conf /etc/nibble/nibble.conf")
    kept = bare.run("cat /etc/nibble/nibble.conf; stat -c '%G %a' /etc/nibble/nibble.conf /etc/nibble")
    assert "Setting up nibble (0.2.0~test2)" in bare.run("dpkg -i /tmp/nibble_0.2.0~test2_*.deb </dev/null")
    assert bare.run("cat /etc/nibble/nibble.conf; stat -c '%G %a' /etc/nibble/nibble.conf /etc/nibble") == kept
    assert "max-queue = 7" in kept
    assert bare.run("dpkg --verify nibble").split() in ([], ["??5??????", "c", "/etc/nibble/nibble.conf"])

    bare.run("dpkg --remove nibble")
    assert "max-queue = 7" in bare.run("cat /etc/nibble/nibble.conf"), "a removal keeps the configuration"
    bare.run("dpkg --purge nibble")
    assert bare.run("ls -d /etc/nibble /var/cache/nibble /usr/share/nibble /usr/bin/nibble 2>&1 || true").count("No such file") == 4


def test_a_new_user_pulls_a_model_by_name_and_serves_it(bare):
    bare.run("dpkg -i /tmp/nibble_0.2.0~test2_*.deb")
    told = bare.run("nibble serve people/tales 2>&1 || true", hub=True)
    assert "nibble pull people/tales" in told
    pulled = bare.run("nibble pull people/tales && nibble list", hub=True)
    assert re.search(r"^people/tales\b", pulled, re.M), pulled
    # What was pulled needs no hub.
    served = bare.run("""
nibble serve people/tales >/tmp/url 2>/tmp/log &
server=$!
for i in $(seq 300); do nibble health 2>/dev/null && break; sleep 0.2; done
exec 3<>/dev/tcp/127.0.0.1/8000
body='{"model":"people/tales","prompt":"Once upon a time","max_tokens":8}'
printf 'POST /v1/completions HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Type: application/json\\r\\nContent-Length: %s\\r\\nConnection: close\\r\\n\\r\\n%s' ${#body} "$body" >&3
cat <&3
kill $server
wait $server; echo "ended with $?"
""")
    assert served.startswith("ok\n") and '"text_completion"' in served and "ended with 0" in served, served[:2000]
    assert "people/tales" not in bare.run("nibble rm people/tales --yes >/dev/null && nibble list")
