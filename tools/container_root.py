#!/usr/bin/env python3
"""The files and settings of the Containerfile's image without a container engine, to test it where none runs.

    tools/container_root.py --base ROOT FOLDER

As root. Follows the Containerfile: ROOT is a root of Debian made by debootstrap (tools/bare_root.sh --root) that stands
for its base image and gets the build's files; FOLDER becomes the last stage's root, FOLDER.json its settings. Each RUN is
a chroot in a mount namespace of its own. An instruction that this does not know is an error. Standard library only.
"""
import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
BUILD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def instructions(text):
    """(WORD, rest) of each instruction; a line that ends in a backslash goes on."""
    text = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    for line in text.splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word.upper(), rest.strip()


def copy_tree(source, target):
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", f"{source}/.", f"{target}/"], check=True)


def copy_context(target):
    """What git knows of the tree and what is new in it: .containerignore leaves out what git ignores."""
    target.mkdir(parents=True, exist_ok=True)
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"], cwd=TREE, check=True,
                           stdout=subprocess.PIPE).stdout.split(b"\0")
    there = b"\0".join(name for name in names if name and (TREE / os.fsdecode(name)).exists())
    packed = subprocess.Popen(["tar", "--create", "--null", "--files-from=-", "--file=-"], cwd=TREE, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    unpacked = subprocess.Popen(["tar", "--extract", "--no-same-owner", f"--directory={target}", "--file=-"], stdin=packed.stdout)
    packed.stdin.write(there)
    packed.stdin.close()
    if unpacked.wait() != 0 or packed.wait() != 0:
        raise SystemExit("container_root: the tree could not be copied")


def run_in(root, command, settings):
    """One RUN: by the shell, in the stage's working directory."""
    variables = {"PATH": BUILD_PATH, "HOME": "/root"} | settings["Env"]
    for name in ("http_proxy", "https_proxy", "no_proxy", "CCACHE_DIR", "CMAKE_CXX_COMPILER_LAUNCHER"):
        if name in os.environ:
            variables[name] = os.environ[name]
    script = """set -e; root=$1; shift
mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"
[ -z "$CCACHE_DIR" ] || { mkdir -p "$root$CCACHE_DIR"; mount --bind "$CCACHE_DIR" "$root$CCACHE_DIR"; }
exec chroot "$root" "$@" """
    subprocess.run(["unshare", "--mount", "--propagation", "private", "bash", "-c", script, "container_root", root, "/bin/sh", "-c",
                    f"cd {shlex.quote(settings['WorkingDir'])} && {command}"], env=variables, check=True, stdin=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, type=Path, help="a root that debootstrap made")
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("container_root: chroot and mount need root; run this as root")
    if not (args.base / "etc/debian_version").exists():
        raise SystemExit(f"container_root: {args.base} is no root of Debian; make one by tools/bare_root.sh --root {args.base}")
    stages, root, settings = {}, None, {}
    for word, rest in instructions((TREE / "Containerfile").read_text()):
        print(f"container_root: {word} {rest}", flush=True)
        if word == "ARG":
            continue  # the base image's name, which --base stands for
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            root = args.folder if image == "scratch" else args.base
            settings = {"Env": {}, "User": "0:0", "WorkingDir": "/", "Entrypoint": [], "Cmd": [], "Healthcheck": []}
            if image == "scratch":
                shutil.rmtree(root, ignore_errors=True)
                root.mkdir(parents=True)
            stages[name] = root
        elif word == "RUN":
            run_in(root, rest, settings)
        elif word == "COPY":
            source = re.match(r"--from=(\S+) (\S+) (\S+)$", rest)
            if source:
                copy_tree(stages[source[1]] / source[2].lstrip("/"), root / source[3].lstrip("/"))
            elif rest.split()[0] == ".":
                copy_context(root / rest.split()[1].lstrip("/"))
            else:
                raise SystemExit(f"container_root: cannot do COPY {rest}")
        elif word == "ENV":
            settings["Env"] |= dict(part.split("=", 1) for part in shlex.split(rest))
        elif word == "WORKDIR":
            settings["WorkingDir"] = rest
            (root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "USER":
            settings["User"] = rest
        elif word in ("ENTRYPOINT", "CMD"):
            settings[word.capitalize()] = json.loads(rest)
        elif word == "HEALTHCHECK":
            settings["Healthcheck"] = json.loads(rest.split("CMD ", 1)[1])
        elif word not in ("EXPOSE", "VOLUME", "STOPSIGNAL"):
            raise SystemExit(f"container_root: {word} is not known here; teach {Path(__file__).name} what it does")
    args.folder.with_name(args.folder.name + ".json").write_text(json.dumps(settings, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
