"""The program with a cache and an environment of its own, and the small checkpoint that a stand-in hub has."""
import json
import os
import random
import signal
import subprocess

from hub import Repository

from nibble_program import BINARY, ROOT, environment

MiB = 1 << 20
COMMIT = "6cee5e81ee83917806bbde320786a8fb61efebee"
EXAMPLE = ROOT / "tests/data/parity/example"
WANTED = ["chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
          "tokenizer_config.json"]


def example_files():
    """A small checkpoint that nibble runs, among files that it does not need."""
    files = {name: (EXAMPLE / name).read_bytes() for name in WANTED}
    return files | {"README.md": b"# read me", "original/model.safetensors": b"o" * 100_000, "metal/model.bin": b"m",
                    "pytorch_model.bin": b"p" * 100, "model.gguf": b"g", ".gitattributes": b"* text"}


def shards(sizes, seed=1):
    """The example's small files beside weights of random bytes in several files with an index."""
    source = random.Random(seed)
    files = {name: data for name, data in example_files().items() if name != "model.safetensors"}
    names = [f"model-{i + 1:05}-of-{len(sizes):05}.safetensors" for i in range(len(sizes))]
    files |= {name: source.randbytes(size) for name, size in zip(names, sizes)}
    files["consolidated.safetensors"] = b"c" * 100
    files["model.safetensors.index.json"] = json.dumps({"weight_map": {f"t{i}": name for i, name in enumerate(names)}}).encode()
    return files


def set_files(hub, files, commit=COMMIT):
    hub.repositories["org/name"] = Repository({commit: files}, {"main": commit})


class Puller:
    def __init__(self, hub, folder):
        self.hub, self.folder = hub, folder
        self.cache = folder / "hub"
        self.variables = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(self.cache), "HF_HOME": str(folder / "home"),
                          "HF_HUB_DOWNLOAD_TIMEOUT": "3"}

    def environment(self, **more):
        kept = {name: value for name, value in environment().items()
                if not name.startswith(("HF_", "HUGGING", "SSL_CERT", "TRANSFORMERS_")) and "proxy" not in name.lower()}
        return {name: value for name, value in (kept | self.variables | more).items() if value is not None}

    def run(self, *arguments, timeout=120, **more):
        done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, timeout=timeout, text=True,
                              stdin=subprocess.DEVNULL, env=self.environment(**more))
        return done.returncode, done.stdout, done.stderr

    def start(self, *arguments, **more):
        return subprocess.Popen([BINARY, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                stdin=subprocess.DEVNULL, env=self.environment(**more))

    def pull(self, *arguments, **more):
        """The folder of a pull that must succeed."""
        code, out, err = self.run("pull", "org/name", *arguments, **more)
        assert code == 0, err
        folder = out.strip()
        assert folder == str(self.cache / "models--org--name/snapshots" / os.path.basename(folder)), (out, err)
        return folder

    def refused(self, *arguments, model="org/name", code=None, **more):
        """What a pull says that must fail: one line."""
        got, out, err = self.run("pull", model, *arguments, **more)
        assert got != 0 and out == "" and (code is None or got == code), (got, out, err)
        assert not list(self.cache.glob("models--*/refs/*")), "no reference to what is not there"
        errors = [line for line in err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1 and errors[0] == err.splitlines()[-1], err
        return errors[0]

    def blobs(self):
        return sorted(path.name for path in (self.cache / "models--org--name/blobs").iterdir())


def content_of(folder, names):
    return {name: open(os.path.join(folder, name), "rb").read() for name in names}


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()
