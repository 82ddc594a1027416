"""Man pages: one for the program and one a command, which the formatter of man pages has nothing to say against."""
import shutil
import subprocess
import sys

import pytest

from nibble_program import BINARY, ROOT, run


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, ROOT / "tools/make_man.py", "--program", BINARY, folder], check=True)
    return folder


def commands():
    return [line.split()[0] for line in run("--help")[1].splitlines() if line.startswith("  ")]


def shown(page):
    """The page as a reader sees it, on lines of any length."""
    for formatter in (["mandoc", "-Tascii", "-Owidth=500"], ["man", "-l"]):
        if shutil.which(formatter[0]):
            text = subprocess.run([*formatter, page], check=True, capture_output=True, text=True, env={"MANWIDTH": "500", "PATH": "/usr/bin:/bin"}).stdout
            # A letter, a backspace and the letter again are bold.
            while "\b" in text:
                at = text.index("\b")
                text = text[:at - 1] + text[at + 1:]
            return text
    pytest.skip("neither mandoc nor man is installed")


def test_there_is_a_page_for_the_program_and_for_each_command(pages):
    assert {page.name for page in pages.iterdir()} == {"nibble.1", *(f"nibble-{name}.1" for name in commands())}


def test_mandoc_has_nothing_to_say(pages):
    if not shutil.which("mandoc"):
        pytest.skip("mandoc is not installed; tools/packages.txt has it in the group extended")
    done = subprocess.run(["mandoc", "-Tlint", "-Wwarning", *sorted(pages.iterdir())], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout


def test_a_page_says_all_that_the_help_says(pages):
    """Every word of each command's help is in its page, in the same order within a row."""
    for name in commands():
        text = " ".join(shown(pages / f"nibble-{name}.1").split())
        for line in run(name, "--help")[1].splitlines():
            if line.startswith("  --"):
                option, _, about = line.strip().partition("  ")
                assert option in text, (name, option)
                assert " ".join(about.split()) in text, (name, about)
        assert run(name, "--help")[1].splitlines()[0] in text
