"""The container image's files, made by the Containerfile's own steps without an engine, and run as an engine would: in a
chroot, as its user, with its variables and no others."""
import json
import os
import shutil
import subprocess

import pytest

from nibble_program import ROOT

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        pytest.skip("the image's root needs root and debootstrap")
    folder = tmp_path_factory.mktemp("image")
    base = folder / "base"
    subprocess.run([ROOT / "tools/bare_root.sh", "--suite", "bookworm", "--root", base, "--", "true"], check=True)
    subprocess.run(["rm", "-rf", base / "src"], check=True)
    subprocess.run([ROOT / "tools/container_root.py", "--base", base, folder / "root"], check=True)
    yield folder / "root", json.loads((folder / "root.json").read_text())
    subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)


def test_the_image_holds_no_shell_and_nothing_that_is_not_needed(image):
    root, _ = image
    programs = {path.name for path in root.rglob("*") if path.is_file() and os.access(path, os.X_OK) and ".so" not in path.name}
    assert programs == {"nibble"}
    assert sum(path.lstat().st_size for path in root.rglob("*")) < 120 << 20


def test_the_image_serves_as_its_own_user_and_its_health_check_says_so(image):
    root, settings = image
    assert settings["User"] == "65532:65532"
    inside = ["/usr/sbin/chroot", f"--userspec={settings['User']}", root]
    variables = settings["Env"] | {"NIBBLE_PORT": "8000"}
    # A network namespace of its own, whose loopback is up: ports are the container's.
    script = """ip link set lo up
"${@}" &
server=$!
for i in $(seq 300); do """ + " ".join(map(str, inside + settings["Healthcheck"])) + """ 2>/dev/null && break; sleep 0.2; done
kill $server; wait $server; echo "ended with $?" """
    done = subprocess.run(["unshare", "--net", "/bin/bash", "-c", script, "image", *inside, *settings["Entrypoint"], *settings["Cmd"]],
                          capture_output=True, text=True, timeout=300, env=variables | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    assert "\nok\n" in "\n" + done.stdout and "ended with 0" in done.stdout, done.stdout + done.stderr
