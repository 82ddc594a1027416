"""Completions in the shells that use them: each is started, the script is loaded as a user would, and Tab is asked for."""
import os
import shutil
import subprocess

import pytest

from nibble_program import BINARY, environment, run
from terminal_session import TerminalSession


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """A folder with the three scripts, the program as `nibble` on PATH, and a few files to complete."""
    folder = tmp_path_factory.mktemp("completions")
    for shell, name in (("bash", "nibble.bash"), ("zsh", "_nibble"), ("fish", "nibble.fish")):
        code, out, err = run("completions", shell)
        assert (code, err) == (0, "")
        (folder / name).write_text(out)
    (folder / "bin").mkdir()
    (folder / "bin/nibble").symlink_to(BINARY)
    (folder / "files/model-folder").mkdir(parents=True)
    (folder / "files/a certificate.pem").touch()
    (folder / "files/other.txt").touch()
    return folder


def path(scripts):
    return f"{scripts / 'bin'}:{os.environ['PATH']}"


def bash(scripts, line):
    """What bash's completion offers at the end of a line. Its words are split as readline does, where = stands alone."""
    words = line.replace("=", " = ").split(" ")
    asked = "source nibble.bash; cd files; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _nibble; for word in \"${COMPREPLY[@]}\"; do echo \"$word\"; done"
    done = subprocess.run(["bash", "--norc", "-c", asked, "bash", *words], cwd=scripts, capture_output=True, text=True, check=True,
                          env=environment(PATH=path(scripts)))
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def fish(scripts, line):
    if not shutil.which("fish"):
        pytest.skip("fish is not installed; tools/packages.txt has it in the group extended")
    asked = f"source ../nibble.fish; complete -C {line!r}"
    done = subprocess.run(["fish", "--no-config", "-c", asked], cwd=scripts / "files", capture_output=True, text=True, check=True,
                          env=environment(PATH=path(scripts), HOME=str(scripts)))
    return [candidate.split("\t")[0] for candidate in done.stdout.splitlines()]


class Zsh:
    """zsh at a terminal: its completion works nowhere else."""

    def __init__(self, scripts):
        zsh = shutil.which("zsh")
        if not zsh:
            pytest.skip("zsh is not installed; tools/packages.txt has it in the group extended")
        self.session = TerminalSession("-f", "-i", program=zsh, PATH=path(scripts), HOME=str(scripts), columns=200, PS1="READY> ")
        self.session.expect("READY> ")
        self.do(f"cd {scripts}/files; fpath=({scripts} $fpath); autoload -Uz compinit && compinit -u -D; setopt no_beep no_list_ambiguous; echo set'up'")
        self.session.expect("setup")
        self.session.expect("READY> ")

    def do(self, keys):
        self.session.send(keys + "\n")

    def lists(self, line, *wanted):
        """Types a line and asks for all that it may become."""
        self.session.send("\x15" + line + "\x04")  # Control-D lists without inserting
        for word in wanted:
            self.session.expect(word)
        self.session.send("\x15\n")
        self.session.expect("READY> ")

    def becomes(self, line, whole):
        self.session.send("\x15" + line + "\t")
        self.session.expect(whole)
        self.session.send("\x15\n")
        self.session.expect("READY> ")


def commands():
    return [line.split()[0] for line in run("--help")[1].splitlines() if line.startswith("  ")]


def test_an_unknown_shell_is_refused_with_those_there_are():
    code, out, err = run("completions", "tcsh")
    assert (code, out) == (2, "") and "bash, zsh or fish" in err


def test_bash_completes_commands_options_words_and_files(scripts):
    assert set(commands()) <= set(bash(scripts, "nibble "))
    assert bash(scripts, "nibble ser") == ["serve"]
    assert "--host" in bash(scripts, "nibble serve --") and "--config" in bash(scripts, "nibble serve --")
    assert bash(scripts, "nibble serve --max-model") == ["--max-model-len"]
    assert bash(scripts, "nibble serve --device ") == ["auto", "cpu", "cuda"]
    assert bash(scripts, "nibble serve --device=c") == ["cpu", "cuda"]
    assert bash(scripts, "nibble serve --log-level w") == ["warning"]
    assert bash(scripts, "nibble serve --port ") == []
    assert bash(scripts, "nibble serve --ssl-certfile a") == ["a certificate.pem"]
    assert bash(scripts, "nibble serve ") == ["demo", "model-folder"]
    assert bash(scripts, "nibble completions ") == ["bash", "zsh", "fish"]


def test_fish_completes_commands_options_words_and_files(scripts):
    assert set(commands()) <= set(fish(scripts, "nibble "))
    assert fish(scripts, "nibble ser") == ["serve"]
    assert fish(scripts, "nibble serve --max-model") == ["--max-model-len"]
    assert fish(scripts, "nibble serve --device ") == ["auto", "cpu", "cuda"]
    assert fish(scripts, "nibble serve --device=c") == ["--device=cpu", "--device=cuda"]
    assert fish(scripts, "nibble serve --port ") == []
    assert "a certificate.pem" in [name.replace("\\", "") for name in fish(scripts, "nibble serve --ssl-certfile ")]
    assert {"demo", "model-folder/"} <= set(fish(scripts, "nibble serve "))
    assert "other.txt" not in fish(scripts, "nibble serve ")


def test_zsh_completes_commands_options_words_and_files(scripts):
    zsh = Zsh(scripts)
    with zsh.session:
        zsh.lists("nibble ", "generate", "serve")
        zsh.becomes("nibble gene", "nibble generate ")
        zsh.lists("nibble serve --device ", "auto", "cpu", "cuda")
        zsh.becomes("nibble serve --device=au", "--device=auto")
        zsh.becomes("nibble serve --max-model", "--max-model-len")
        zsh.becomes("nibble serve mod", "model-folder/")
        zsh.becomes("nibble serve --ssl-certfile a", "a\\ certificate.pem")


def test_each_option_of_each_command_is_offered_with_every_spelling(scripts):
    for command in commands():
        offered = set(bash(scripts, f"nibble {command} -"))
        for line in run(command, "--help")[1].splitlines():
            words = line.split()
            if line.startswith("  --"):
                assert words[0] in offered, (command, words[0])
