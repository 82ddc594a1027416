#!/usr/bin/env python3
"""Brings published vocabularies to build/venv/vocabularies, for tests. They are too large for the repository, and lie in
packages of PyPI.

tools/setup.sh --python calls it. Nothing of these packages is installed or run."""
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "build/venv/vocabularies"
# Package -> what of it: (file in it, our name for it, sha256).
PACKAGES = {
    "litellm==1.110.2": [
        ("litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790", "o200k_base.tiktoken",
         "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"),
        ("litellm/litellm_core_utils/tokenizers/deepseek_tokenizer.json", "deepseek.json",
         "4607b3d1929c5ca263a81d7153c6d6ecdbc71c9e933c0fb2df2abf181bf6df61"),
    ],
    "dashscope==1.20.14": [
        ("dashscope/resources/qwen.tiktoken", "qwen.tiktoken",
         "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"),
    ],
}


def bring(package, files, folder):
    with tempfile.TemporaryDirectory() as there:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--retries", "1", "--only-binary", ":all:", "--dest", there, package], check=True)
        wheel, = Path(there).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for member, name, digest in files:
                content = archive.read(member)
                if hashlib.sha256(content).hexdigest() != digest:
                    raise ValueError(f"{member} of {package} is not the file that it was")
                (folder / name).write_bytes(content)


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for package, files in PACKAGES.items():
        if not all((FOLDER / name).exists() for _, name, _ in files):
            bring(package, files, FOLDER)


if __name__ == "__main__":
    main()
