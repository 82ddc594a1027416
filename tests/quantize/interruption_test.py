"""`nibble quantize` cut short: killed, interrupted, out of room, its source changed. The destination is complete or
absent, and the same command goes on from what was done."""
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from checkpoints import random_weights, read_tensors, write_moe, write_sparse, write_tensors
from nibble_program import BINARY, environment, run
from terminal_session import TerminalSession


def start(*arguments, **more):
    return subprocess.Popen([BINARY, "quantize", *map(str, arguments)], env=environment(), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **more)


def finish(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, out.decode(), err.decode()


def write_many(folder, count=300, rows=384, cols=512):
    """Many tensors, so that there are many moments to be killed in."""
    folder.mkdir()
    block = random_weights(1, (rows, cols))
    write_tensors(folder / "model.safetensors", {f"layers.{i}.weight": block for i in range(count)})
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A source, what an undisturbed run makes of it, and how long that took."""
    folder = tmp_path_factory.mktemp("many")
    write_many(folder / "src")
    began = time.monotonic()
    assert run("quantize", folder / "src", folder / "whole", "--format", "nvfp4")[0] == 0
    return folder / "src", folder / "whole", time.monotonic() - began


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def kill_at_random_moments(many, folder, kills, seed):
    src, whole, seconds = many
    out, rng, killed = folder / "out", random.Random(seed), 0
    for _ in range(kills):
        process = start(src, out, "--format", "nvfp4")
        try:
            process.wait(timeout=rng.uniform(0, 1.1 * seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            killed += 1
        finish(process)
        if out.exists():
            assert contents(out) == contents(whole)
            break
    if not out.exists():
        code, _, err = run("quantize", src, out, "--format", "nvfp4")
        assert code == 0, err
    assert contents(out) == contents(whole)
    assert [path.name for path in folder.iterdir() if path.name != "out"] in ([], [".out.quantizing"])
    return killed


def test_killed_at_random_moments_it_is_complete_or_absent(many, tmp_path):
    killed = 0
    for seed in range(3):
        (tmp_path / str(seed)).mkdir()
        killed += kill_at_random_moments(many, tmp_path / str(seed), 4, seed)
    assert killed > 0


@pytest.mark.extended
def test_killed_a_hundred_times(many, tmp_path):
    killed = seed = 0
    while killed < 100:
        seed += 1
        assert seed < 400, "runs end before they are killed"
        (tmp_path / str(seed)).mkdir()
        killed += kill_at_random_moments(many, tmp_path / str(seed), 4, seed)
        shutil.rmtree(tmp_path / str(seed))
    print(f"killed {killed} times in {seed} conversions")


def journal_lines(out):
    journal = out.parent / f".{out.name}.quantizing" / "journal"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


SLOW_MODULES = 480  # a fast CPU does 150 of them in the second after which the journal tells of any


def wait_for_work(process, out):
    """Until something is done for good, which takes a second at least."""
    while journal_lines(out) < 2 and process.poll() is None:
        time.sleep(0.005)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A source that takes some seconds."""
    src = tmp_path_factory.mktemp("slow") / "src"
    src.mkdir()
    write_sparse(src / "model.safetensors", {f"layers.{i}.weight": (512, 2048) for i in range(SLOW_MODULES)})
    (src / "config.json").write_text("{}")
    return src


@pytest.mark.long
def test_a_run_goes_on_from_what_is_done_and_refuses_other_options(slow, tmp_path):
    out = tmp_path / "out"
    process = start(slow, out, "--format", "mxfp8", "--scale-search", "--threads", "1")
    wait_for_work(process, out)
    # A second one at the same time is refused; so is one after Ctrl-C that wants something else.
    code, _, err = run("quantize", slow, out, "--format", "mxfp8", "--scale-search")
    assert process.poll() is None and code == 2 and "another nibble" in err
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130 and "--restart" in err and not out.exists()
    done = journal_lines(out) - 1
    assert 0 < done < SLOW_MODULES
    code, _, err = run("quantize", slow, out, "--format", "mxfp4")
    assert code == 2 and "unfinished conversion" in err and "--restart" in err
    with open(out.parent / ".out.quantizing" / "journal", "ab") as journal:
        journal.write(f"job {SLOW_MODULES - 1} 0000".encode())  # a line that was being written
    code, text, err = run("quantize", slow, out, "--format", "mxfp8", "--scale-search", "--json")
    assert code == 0, err
    assert json.loads(text)["resumed"] == done and len(json.loads(text)["modules"]) == SLOW_MODULES
    assert not (tmp_path / ".out.quantizing").exists()


@pytest.mark.long
def test_restart_throws_away_what_was_done(slow, tmp_path):
    out = tmp_path / "out"
    process = start(slow, out, "--format", "mxfp8", "--scale-search", "--threads", "1")
    wait_for_work(process, out)
    process.kill()
    finish(process)
    code, text, err = run("quantize", slow, out, "--format", "mxfp4", "--restart", "--json")
    assert code == 0, err
    assert json.loads(text)["resumed"] == 0


def test_a_source_that_changes_meanwhile_is_an_error(tmp_path):
    src, out = tmp_path / "src", tmp_path / "out"
    src.mkdir()
    write_sparse(src / "model.safetensors", {f"layers.{i}.weight": (1024, 4096) for i in range(100)})
    (src / "config.json").write_text("{}")
    process = start(src, out, "--format", "mxfp8", "--scale-search", "--threads", "1")
    wait_for_work(process, out)
    os.truncate(src / "model.safetensors", 10_000_000)
    code, _, err = finish(process)
    assert code == 1 and "changed from" in err and not out.exists()


def test_a_limit_on_file_sizes_is_an_error_and_the_rest_is_kept(tmp_path):
    src, out = tmp_path / "src", tmp_path / "out"
    write_many(src, count=20)
    limit = 1 << 20
    process = start(src, out, "--format", "mxfp4", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    code, _, err = finish(process)
    assert code == 1 and "File too large" in err and "run the same command again" in err and not out.exists()
    assert run("quantize", src, out, "--format", "mxfp4")[0] == 0
    assert len(read_tensors(out)) == 40


def test_a_full_disk_is_said_before_anything_is_written(tmp_path):
    src, small = tmp_path / "src", tmp_path / "small"
    write_many(src, count=40)
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a small file system cannot be mounted here: " + mounted.stderr.decode().strip())
    try:
        code, _, err = run("quantize", src, small / "out", "--format", "mxfp4")
        assert code == 1 and "left; make room or give a DST on another disk" in err
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)


def become_nobody():
    """Root may read everything."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def test_a_source_that_may_not_be_read_is_an_error():
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name)
        folder.chmod(0o777)
        write_moe(folder / "src")
        (folder / "src" / "model.safetensors").chmod(0)
        try:
            process = start(folder / "src", folder / "out", "--format", "mxfp4", preexec_fn=become_nobody)
        except PermissionError:
            pytest.skip("nobody but root may run the program where it lies")
        code, _, err = finish(process)
        assert code == 1 and "model.safetensors" in err and "Permission denied" in err
        assert not (folder / "out").exists()


def test_a_terminal_shows_how_far_it_is(slow, tmp_path):
    with TerminalSession("quantize", slow, tmp_path / "out", "--format", "mxfp8", "--scale-search", "--threads", "1") as session:
        session.expect("quantizing")
        session.expect("%")


@pytest.mark.parametrize("misaligned", [False, True])
def test_memory_does_not_grow_with_the_source(tmp_path, misaligned):
    """Three hundred megabytes, the experts of gpt-oss transposed, in a third of that."""
    src = tmp_path / "src"
    src.mkdir()
    write_sparse(src / "model.safetensors", {"model.layers.0.mlp.experts.gate_up_proj": (8, 512, 12288),
                                             "model.layers.0.mlp.experts.down_proj": (8, 1024, 6144),
                                             "model.layers.0.self_attn.q_proj.weight": (8192, 6144)},
                 misaligned)
    (src / "config.json").write_text('{"architectures": ["GptOssForCausalLM"]}')
    process = start(src, tmp_path / "out", "--format", "mxfp4")
    most = 0
    while process.poll() is None:
        status = open(f"/proc/{process.pid}/status").read()
        most = max([most] + [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")])
        time.sleep(0.002)
    assert finish(process)[0] == 0
    assert (src / "model.safetensors").stat().st_size > 300e6
    assert 0 < most < 100 * 1024  # KiB
