"""`nibble list` and `nibble rm` on caches that are whole, half there, in use, or not there at all."""
import json
import mmap
import os

import pytest
from pulling import COMMIT, EXAMPLE, WANTED
from serving import Server
from terminal_session import TerminalSession

from nibble_program import ROOT, run

OTHER = "7" * 40


def add(cache, name, files, commit=COMMIT, ref="main"):
    """A repository of the cache by hand: contents by their place in the list, links to them."""
    repository = cache / ("models--" + name.replace("/", "--"))
    (repository / "blobs").mkdir(parents=True, exist_ok=True)
    (repository / "refs").mkdir(exist_ok=True)
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file, content in files.items():
        blob = f"{hash((file, content)) & (1 << 60) - 1:040x}"
        (repository / "blobs" / blob).write_bytes(content)
        os.symlink(f"../../blobs/{blob}", snapshot / file)
    if ref:
        (repository / "refs" / ref).write_text(commit)
    return snapshot


def example():
    return {name: (EXAMPLE / name).read_bytes() for name in WANTED}


@pytest.fixture
def cache(tmp_path):
    cache = tmp_path / "hub"
    cache.mkdir()
    return cache


def listed(cache):
    code, out, err = run("list", "--json", HF_HUB_CACHE=str(cache))
    assert code == 0, err
    return json.loads(out)


def test_what_runs_has_its_bytes_and_its_memory(cache):
    add(cache, "org/name", example())
    row, = listed(cache)["models"]
    assert row["runs"] and row["why_not"] is None and row["architecture"] == "GptOssForCausalLM"
    assert row["bytes"] == sum(map(len, example().values()))
    assert row["memory"]["bytes"] > 1 << 20 and row["memory"]["device"] == "cpu"
    code, out, err = run("list", HF_HUB_CACHE=str(cache))
    head, line = out.splitlines()
    assert head.split()[0] == "model" and line.startswith("org/name") and "main" in line and "yes, with" in line


def test_the_memory_is_what_plan_says(cache):
    add(cache, "org/name", example())
    row, = listed(cache)["models"]
    code, out, err = run("plan", "org/name", "--as", "this", "--max-num-seqs", "1", "--max-model-len",
                         row["memory"]["tokens"], "--json", HF_HUB_CACHE=str(cache))
    assert code == 0 and json.loads(out)["memory"]["total"] == row["memory"]["bytes"], err


def test_of_the_others_it_says_why_not(cache):
    llama = json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}).encode()
    add(cache, "a/llama", {"config.json": llama, "model.safetensors": b"x"})
    add(cache, "b/nothing", {})
    files = example()
    snapshot = add(cache, "c/lost", files)
    os.remove(os.path.realpath(snapshot / "model.safetensors"))
    files["model.safetensors"] = files["model.safetensors"][:-1000]
    add(cache, "d/cut", files)
    add(cache, "e/huge", {"config.json": (ROOT / "tests/data/models/gpt-oss-120b/config.json").read_bytes()})
    rows = {row["model"]: row for row in listed(cache)["models"]}
    assert not any(row["runs"] for row in rows.values())
    assert "llama" in rows["a/llama"]["why_not"].lower()
    assert "config.json" in rows["b/nothing"]["why_not"]
    assert "model.safetensors" in rows["c/lost"]["why_not"]
    assert "model.safetensors" in rows["d/cut"]["why_not"]
    assert "safetensors" in rows["e/huge"]["why_not"]
    code, out, err = run("list", HF_HUB_CACHE=str(cache))
    assert out.count(" no: ") == 5 and err == ""


def test_an_empty_cache_or_none_is_no_error(cache, tmp_path):
    for folder in (cache, tmp_path / "absent"):
        assert listed(folder)["models"] == []
        code, out, err = run("list", HF_HUB_CACHE=str(folder))
        assert (code, out) == (0, "") and "nibble pull" in err


def test_names_from_the_disk_cannot_steer_a_terminal(cache):
    snapshot = add(cache, "org/name", example(), ref=None)
    (cache / "models--org--name/refs/\x1b[31m").write_text(COMMIT)
    os.rename(snapshot, snapshot.with_name("\x1b[32m"))
    (cache / "models--x\x1b[33m--y/snapshots").mkdir(parents=True)
    out = run("list", HF_HUB_CACHE=str(cache))[1]
    assert "\x1b" not in out and "org/name" in out


def test_rm_asks_on_a_terminal_and_wants_yes_elsewhere(cache):
    add(cache, "org/name", example())
    code, out, err = run("rm", "org/name", HF_HUB_CACHE=str(cache))
    assert code == 2 and "--yes" in err and (cache / "models--org--name").exists()
    for reply, left in (("n", True), ("", True), ("nonsense", True), ("YES", False)):
        with TerminalSession("rm", "org/name", HF_HUB_CACHE=str(cache)) as terminal:
            terminal.expect("[y/N] ")
            terminal.send(reply + "\r")
            assert terminal.wait() == 0
        assert (cache / "models--org--name").exists() == left, reply
    assert os.listdir(cache) == []


def test_rm_of_a_revision_leaves_what_another_one_uses(cache):
    add(cache, "org/name", example())
    changed = add(cache, "org/name", example() | {"tokenizer_config.json": b"{}"}, OTHER, "v2")
    code, out, err = run("rm", "org/name@main", "--yes", HF_HUB_CACHE=str(cache))
    assert code == 0 and "removed org/name@main" in out, err
    assert sorted(os.listdir(changed)) == WANTED and all((changed / name).exists() for name in WANTED)
    rows = listed(cache)["models"]
    assert [row["revision"] for row in rows] == [OTHER] and rows[0]["runs"]
    assert len(os.listdir(cache / "models--org--name/blobs")) == len(WANTED)
    assert run("rm", f"org/name@{OTHER[:8]}", "--yes", HF_HUB_CACHE=str(cache))[0] == 0
    assert os.listdir(cache) == []


def test_a_model_that_another_program_has_mapped_stays(cache):
    snapshot = add(cache, "org/name", example())
    with open(snapshot / "model.safetensors", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        code, out, err = run("rm", "org/name", "--yes", HF_HUB_CACHE=str(cache))
        assert code == 1 and f"(process {os.getpid()})" in err, err
    assert run("rm", "org/name", "--yes", HF_HUB_CACHE=str(cache))[0] == 0


def test_rm_of_what_is_not_there_says_so(cache):
    add(cache, "org/name", example())
    code, out, err = run("rm", "org/other", "--yes", HF_HUB_CACHE=str(cache))
    assert code == 3 and "nibble list" in err
    code, out, err = run("rm", "org/name@v9", "--yes", HF_HUB_CACHE=str(cache))
    assert code == 3 and '"v9"' in err
    for name in ("../x", "name", "org/..", "org/name@../../x"):
        assert run("rm", name, "--yes", HF_HUB_CACHE=str(cache))[0] == 2
    assert len(listed(cache)["models"]) == 1


def test_a_model_that_is_served_stays(cache, monkeypatch):
    add(cache, "org/name", example())
    add(cache, "org/name", example() | {"tokenizer_config.json": b"{}"}, OTHER, "v2")
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    server = Server(model="org/name")
    try:
        code, out, err = run("rm", "org/name", "--yes")
        assert code == 1 and "in use" in err, err
        assert run("rm", "org/name@main", "--yes")[0] == 1
        assert run("rm", "org/name@v2", "--yes")[0] == 0
        assert server.get("/health")[0] == 200
    finally:
        server.stop()
    assert run("rm", "org/name", "--yes")[0] == 0
