"""Runs the built program. NIBBLE_BINARY names it; the default is build/release/nibble of this tree."""
import json
import os
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BINARY = Path(os.environ.get("NIBBLE_BINARY", ROOT / "build/release/nibble")).resolve()
PARITY = ROOT / "tests/data/parity"


def environment(**more):
    """This process's environment without what would change the program's ways."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("NIBBLE_") and k not in ("NO_COLOR", "TERM")}
    return kept | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | more


def run(*arguments, stdin="", timeout=120, **more):
    """(exit code, stdout, stderr) of one call. Output need not be UTF-8; what is not comes back escaped."""
    assert BINARY.exists(), f"{BINARY} is not built; run make, or set NIBBLE_BINARY"
    done = subprocess.run([BINARY, *map(str, arguments)], input=stdin.encode(), capture_output=True, timeout=timeout,
                          env=environment(**more))
    return done.returncode, done.stdout.decode(errors="backslashreplace"), done.stderr.decode(errors="backslashreplace")


def generate(model, *arguments, **more):
    """The JSON lines of a `generate --json` that must succeed."""
    code, out, err = run("generate", model, *arguments, "--json", **more)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def prompts_file(lines):
    """A temporary file of JSON lines for --prompts; deleted with the returned object."""
    file = tempfile.NamedTemporaryFile("w", suffix=".jsonl")
    file.writelines(json.dumps(line) + "\n" for line in lines)
    file.flush()
    return file
