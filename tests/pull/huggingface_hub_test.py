"""The cache as huggingface_hub sees it: it reads what nibble wrote, and nibble reads what it wrote."""
import json
import os
import subprocess
import sys

import pytest
from pulling import COMMIT, WANTED, example_files

# Runs in a process of its own: huggingface_hub reads its variables when it is imported.
SCAN = """
import json, huggingface_hub
info = huggingface_hub.scan_cache_dir()
print(json.dumps({
    "warnings": [str(warning) for warning in info.warnings],
    "unfinished": [str(file.file_path) for file in info.incomplete_files],
    "repos": [{"id": repo.repo_id, "type": repo.repo_type, "bytes": repo.size_on_disk, "revisions": [
        {"commit": revision.commit_hash, "refs": sorted(revision.refs), "bytes": revision.size_on_disk,
         "files": {file.file_name: [str(file.blob_path), file.size_on_disk] for file in revision.files}}
        for revision in repo.revisions]} for repo in info.repos]}))
"""
SNAPSHOT = "import huggingface_hub; print(huggingface_hub.snapshot_download('org/name', local_files_only=True))"
OFFLINE_FILE = "import huggingface_hub; print(huggingface_hub.hf_hub_download('org/name', 'config.json', revision='{}'))"
DOWNLOAD = "import huggingface_hub; print(huggingface_hub.snapshot_download('org/name', revision='{}'))"
DELETE = """
import huggingface_hub
strategy = huggingface_hub.scan_cache_dir().delete_revisions('{}')
print(strategy.expected_freed_size); strategy.execute()
"""


def python(puller, code, **more):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                          env=puller.environment(HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_TELEMETRY="1",
                                                 HF_HUB_DISABLE_XET="1", **more))
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_huggingface_hub_reads_what_nibble_wrote(hub, puller):
    folder = puller.pull()
    found = json.loads(python(puller, SCAN))
    assert found["warnings"] == [] and found["unfinished"] == []
    repository, = found["repos"]
    revision, = repository["revisions"]
    files = example_files()
    assert (repository["id"], repository["type"]) == ("org/name", "model")
    assert revision["commit"] == COMMIT and revision["refs"] == ["main"]
    assert {name: size for name, (_, size) in revision["files"].items()} == {name: len(files[name]) for name in WANTED}
    assert repository["bytes"] == sum(len(files[name]) for name in WANTED)
    hub.close()
    assert python(puller, SNAPSHOT) == folder
    assert python(puller, OFFLINE_FILE.format("main"), HF_HUB_OFFLINE="1") == os.path.join(folder, "config.json")
    assert python(puller, OFFLINE_FILE.format(COMMIT), HF_HUB_OFFLINE="1") == os.path.join(folder, "config.json")


def test_huggingface_hub_fetches_only_what_nibble_left_out(hub, puller):
    folder = puller.pull()
    hub.requests.clear()
    assert python(puller, DOWNLOAD.format("main")) == folder
    fetched = {path.split("/resolve/")[1].split("/", 1)[1] for path, headers in hub.asked("hub", "/resolve/")}
    assert not fetched & set(WANTED), "contents and links of nibble's are taken as they are"
    assert set(os.listdir(folder)) > set(WANTED)
    assert not hub.asked("cdn", hub.repositories["org/name"].blob("model.safetensors", example_files()["model.safetensors"]))


def test_nibble_reads_what_huggingface_hub_wrote(hub, puller):
    folder = python(puller, DOWNLOAD.format("main"))
    code, out, err = puller.run("inspect", "org/name", "--json")
    assert code == 0 and json.loads(out)["folder"] == folder, err
    hub.requests.clear()
    code, out, err = puller.run("pull", "org/name")
    assert code == 0 and out.strip() == folder and "already here" in err, err
    assert not hub.asked("cdn") and not hub.asked("hub", "/resolve/")
    row, = json.loads(puller.run("list", "--json")[1])["models"]
    assert row["model"] == "org/name" and row["refs"] == ["main"] and row["runs"], row
    assert row["bytes"] == sum(len(data) for data in example_files().values())


def test_revisions_of_both_share_their_contents(hub, puller):
    other = "7" * 40
    hub.repositories["org/name"].commits[other] = example_files() | {"tokenizer_config.json": b'{"a": 1}'}
    hub.repositories["org/name"].refs["v2"] = other
    python(puller, DOWNLOAD.format("main"))
    hub.requests.clear()
    code, _, err = puller.run("pull", "org/name@v2")
    assert code == 0, err
    assert [path.rsplit("/", 1)[1] for path, _ in hub.asked("hub", "/resolve/")] == ["tokenizer_config.json"]
    revisions = json.loads(python(puller, SCAN))["repos"][0]["revisions"]
    assert {revision["commit"]: revision["refs"] for revision in revisions} == {COMMIT: ["main"], other: ["v2"]}
    # What one program removes, the other sees go, and what another revision needs stays.
    python(puller, DELETE.format(COMMIT))
    code, out, err = puller.run("inspect", "org/name@v2", "--json")
    assert code == 0, err
    puller.pull()
    code, out, err = puller.run("rm", "org/name@v2", "--yes")
    assert code == 0 and "removed org/name@v2" in out, err
    found = json.loads(python(puller, SCAN))
    assert found["warnings"] == [] and [revision["commit"] for revision in found["repos"][0]["revisions"]] == [COMMIT]
    assert python(puller, OFFLINE_FILE.format("main"), HF_HUB_OFFLINE="1").endswith(COMMIT + "/config.json")


def test_an_interrupted_pull_is_no_snapshot_for_anybody(hub, puller):
    hub.fail("^cdn/", lambda handler: handler.send(418) or True, times=99)
    assert puller.run("pull", "org/name")[0] != 0
    (puller.cache / "models--org--name/blobs" / ("a" * 64 + ".nibble.incomplete")).write_bytes(b"x" * 10)
    done = subprocess.run([sys.executable, "-c", SNAPSHOT], capture_output=True, text=True, timeout=120, env=puller.environment())
    assert done.returncode != 0 and "LocalEntryNotFoundError" in done.stderr
    hub.faults.clear()
    assert python(puller, DOWNLOAD.format("main")).endswith(COMMIT)


def test_a_download_of_huggingface_hub_is_waited_for(hub, puller):
    """It holds the lock of the blob that it downloads."""
    fcntl = pytest.importorskip("fcntl")
    blob = hub.repositories["org/name"].blob("model.safetensors", example_files()["model.safetensors"])
    lock = puller.cache / ".locks/models--org--name" / f"{blob}.lock"
    lock.parent.mkdir(parents=True)
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = puller.start("pull", "org/name")
        assert "another program downloads \"model.safetensors\"" in process.stderr.readline()
        assert process.poll() is None and not hub.asked("cdn")
        fcntl.flock(held, fcntl.LOCK_UN)
        assert process.wait(timeout=60) == 0
    process.communicate()


def test_contents_in_the_shared_store_are_read_and_left_to_their_owner(hub, puller, tmp_path):
    """huggingface_hub may keep a blob as a link into a store that several models share."""
    puller.pull()
    repository = puller.cache / "models--org--name"
    blob = hub.repositories["org/name"].blob("model.safetensors", example_files()["model.safetensors"])
    store = puller.cache / "blobs" / "ab" / ("ab" * 32)
    store.parent.mkdir(parents=True)
    (puller.cache / "blobs/.huggingface-shared-blobs").write_text("1\n")
    os.rename(repository / "blobs" / blob, store)
    os.symlink(os.path.relpath(store, repository / "blobs"), repository / "blobs" / blob)
    assert puller.run("inspect", "org/name")[0] == 0
    row, = json.loads(puller.run("list", "--json")[1])["models"]
    assert row["runs"] and row["bytes"] == sum(len(example_files()[name]) for name in WANTED)
    code, out, err = puller.run("rm", "org/name", "--yes")
    assert code == 0 and "shared store" in err and store.exists() and not repository.exists()


def test_hidden_files_of_huggingface_hub_are_passed_over(hub, puller):
    python(puller, DOWNLOAD.format("main"))
    (puller.cache / "models--org--name/.no_exist" / COMMIT).mkdir(parents=True)
    (puller.cache / "models--org--name/.no_exist" / COMMIT / "adapter_config.json").write_text("")
    (puller.cache / "datasets--org--data/snapshots").mkdir(parents=True)
    (puller.cache / "version.txt").write_text("1")
    assert [row["model"] for row in json.loads(puller.run("list", "--json")[1])["models"]] == ["org/name"]
    assert puller.run("rm", "org/name", "-y")[0] == 0
    assert not (puller.cache / "models--org--name").exists()
