"""The program as a shell sees it: what goes to which stream, and what it returns."""
import subprocess

import pytest

from nibble_program import BINARY, ROOT, environment, run


def test_help_and_version_are_results():
    commands = [line.split()[0] for line in run("--help")[1].splitlines() if line.startswith("  ")]
    for arguments in [["--help"], ["--version"], *([name, "--help"] for name in commands)]:
        code, out, err = run(*arguments)
        assert (code, err) == (0, "") and out, arguments
        assert len(out.splitlines()) <= 40 and max(map(len, out.splitlines())) <= 100, arguments


def test_the_version_names_a_commit_of_this_repository():
    commit = run("--version")[1].split("commit: ")[1].split("\n")[0]
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout here")
    assert subprocess.run(["git", "-C", ROOT, "cat-file", "-e", f"{commit}^{{commit}}"]).returncode == 0, commit


@pytest.mark.parametrize("arguments, code, named", [
    ([], 2, "nibble --help"),
    (["tokenise"], 2, "the nearest is tokenize"),
    (["tokenize", "demo", "--txt", "x"], 2, "the nearest is --text"),
    (["tokenize", "demo", "--text"], 2, "--text needs a value"),
    (["tokenize"], 2, "no TOKENIZER given"),
    (["generate", "demo", "--prompt", "x", "--device", "cuda"], 2, "built without CUDA"),
    (["generate", "demo", "--prompt", "x", "-np", "none"], 2, '-np "none"'),
    (["generate", "demo", "--prompt", "x", "--dtype", "fp8"], 2, "weights in FP8, and this model has none"),
    (["generate", "/no/such/model", "--prompt", "x"], 3, "/no/such/model"),
])
def test_an_error_is_one_line_on_standard_error(arguments, code, named):
    got, out, err = run(*arguments)
    assert (got, out) == (code, ""), err
    assert err.startswith("error: ") and err.count("\n") == 1 and "; " in err and named in err, err


def test_a_bad_variable_is_named():
    code, out, err = run("generate", "demo", "--prompt", "x", NIBBLE_TEMPERATURE="warm")
    assert (code, out) == (2, "") and 'NIBBLE_TEMPERATURE "warm"' in err, err


@pytest.mark.parametrize("variable, named", [
    ("NIBBLE_THREDS", "the nearest known one is NIBBLE_THREADS"),
    ("NIBBLE_CONTEXT_LENGTH", "the nearest known one is NIBBLE_MAX_MODEL_LEN"),
])
def test_an_unknown_variable_is_warned_of_once(variable, named):
    code, out, err = run("tokenize", "demo", "--text", "x", **{variable: "warm"})
    assert code == 0 and out and err.startswith("warning: ") and err.count("\n") == 1 and named in err, err


def test_every_command_starts_beside_a_service_named_nibble():
    injected = {"NIBBLE_PORT": "tcp://10.0.0.1:8000", "NIBBLE_SERVICE_HOST": "10.0.0.1",
                "NIBBLE_SERVICE_PORT": "8000", "NIBBLE_SERVICE_PORT_HTTP": "8000",
                "NIBBLE_PORT_8000_TCP": "tcp://10.0.0.1:8000", "NIBBLE_PORT_8000_TCP_ADDR": "10.0.0.1"}
    for arguments in (["tokenize", "demo", "--text", "x"], ["plan", "demo"], ["inspect", "demo"]):
        code, out, err = run(*arguments, **injected)
        assert (code, err) == (0, "") and out, err


def test_results_that_cannot_be_written_are_a_failure():
    with open("/dev/full", "w") as full:
        done = subprocess.run([BINARY, "--help"], stdout=full, stderr=subprocess.PIPE, env=environment())
    assert done.returncode == 1 and b"No space left" in done.stderr
