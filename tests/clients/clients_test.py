"""Programs that people use, each in its own Python environment, against `nibble serve demo`: what they send is served.
The demo model follows no instructions, so calls are forced and answers are held to schemas. A client is a file here,
NAME_client.py; every check in it is a case."""
import ast
import functools
import hashlib
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from serving import Server

pytestmark = pytest.mark.extended
HERE, ROOT = Path(__file__).parent, Path(__file__).resolve().parents[2]
OLDER = ("instructor", "llama_index")  # they want an older openai than the others do


def checks_of(client):
    tree = ast.parse((HERE / f"{client}_client.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]


CASES = [(client, check) for client in sorted(file.name.removesuffix("_client.py") for file in HERE.glob("*_client.py"))
         for check in checks_of(client)]


@functools.cache
def python_of(requirements):
    """The interpreter of an environment with what the file names; made once, kept beside the build."""
    file = ROOT / "tools" / requirements
    folder = ROOT / "build" / f"venv-clients-{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"
    python = folder / "bin/python"
    if not (folder / "whole").exists():
        try:
            urllib.request.urlopen("https://pypi.org/simple/pip/", timeout=20).close()
        except OSError as error:
            pytest.skip(f"PyPI is not reached, and {requirements} has not been installed yet: {error}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", file], check=True)
        (folder / "whole").touch()
    return python


@pytest.fixture(scope="module")
def demo():
    server = Server("--max-queue", 900)
    yield server
    assert server.process.poll() is None, "nothing that a client sent ended it"
    assert server.stop() == 0


@functools.cache
def outcomes(client, url):
    """check: what went wrong, or None."""
    python = python_of("requirements-clients-older.txt" if client in OLDER else "requirements-clients.txt")
    done = subprocess.run([python, HERE / f"{client}_client.py", url], capture_output=True, text=True, timeout=900)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"check"')]
    return {line["check"]: line["error"] for line in lines} | {None: done.stdout[-2000:] + done.stderr[-4000:]}


@pytest.mark.parametrize("client, check", CASES)
def test_a_client_is_served(demo, client, check):
    found = outcomes(client, demo.url)
    assert check in found, found[None]
    assert found[check] is None, found[check]
