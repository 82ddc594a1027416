"""A library's version broke a path that its minimum let pass, and arguments shifted by one place."""
import json
import re

import pytest

from nibble_program import ROOT, run

OSS = ROOT / "tests/data/models/gpt-oss-120b"


def machine(tmp_path, *libraries):
    code, out, _ = run("plan", "--machine-json", "--as", "h200x4")
    assert code == 0
    one = json.loads(out)
    one["libraries"] = [{"name": name, "version": version} for name, version in libraries]
    (tmp_path / "machine.json").write_text(json.dumps(one))
    return tmp_path / "machine.json"


@pytest.mark.parametrize("version, words", [
    ("2.28.3", "2.28.3 is known to be bad"),
    ("2.18.5", "2.18.5 is too old"),
    ("2.31.0", "2.31.0 is newer than what nibble was tested with"),
])
def test_a_version_between_minimum_and_maximum_can_be_bad(tmp_path, version, words):
    code, out, err = run("plan", OSS, "--as", machine(tmp_path, ("nccl", version)), "--tp", 4, "--all-reduce", "nccl")
    assert (code, out) == (2, "") and words in err and "install NCCL" in err


def test_a_gate_covers_every_user_of_its_library(tmp_path):
    old = machine(tmp_path, ("cuda_driver", "12.4"))
    code, out, err = run("plan", OSS, "--as", old, "--tp", 4)
    fields = dict(line.split()[:2] for line in out.splitlines() if len(line.split()) > 1)
    assert code == 0 and fields["device"] == "cpu", "a driver that is too old leaves the CPU's ranks"
    code, out, err = run("plan", OSS, "--as", old, "--device", "cuda")
    assert code == 2 and "cuda_driver 12.4 is too old" in err and "install a driver" in err


def test_an_override_is_said_and_not_forgotten(tmp_path):
    new = machine(tmp_path, ("cuda_driver", "14.0"))
    code, out, err = run("plan", OSS, "--as", new, "--device", "cuda", "--override-gates", "cuda_driver", "--json")
    assert code == 0, err
    [gate] = [gate for gate in json.loads(out)["gates"] if gate["name"] == "cuda_driver"]
    assert gate["status"] == "too_new" and gate["overridden"] and gate["used_by"]


def test_no_function_takes_arguments_that_could_shift_unseen():
    """More than six arguments, or two neighbouring flags, must be a struct with names."""
    of_raw_memory = {"repack_mxfp4_cuda", "encode_rows"}
    declaration = re.compile(r"^[\w:<>&*,\s]*?\b(\w+)\(([^(){};]*)\)\s*(?:const\s*)?;", re.M)
    flags = re.compile(r"\bbool\s+\w+\s*(?:=[^,]*)?,\s*bool\s+\w+")
    found = []
    for header in sorted((ROOT / "src").rglob("*.h")):
        for name, arguments in declaration.findall(header.read_text()):
            depth, count = 0, 1
            for character in arguments:
                depth += (character == "<") - (character == ">")
                count += character == "," and depth == 0
            if name not in of_raw_memory and (count > 6 or flags.search(arguments)):
                found.append(f"{header.relative_to(ROOT)}: {name}({count} arguments)")
    assert found == []
