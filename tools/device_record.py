#!/usr/bin/env python3
"""Records of runs on a GPU, in docs/device/: what ran there, on what, and which sources it was built from.

    tools/device_record.py run PROGRAMS [SECONDS]
                                             run device_test and the device benchmarks of that folder, as far as they
                                             get in that time, and write a record
    tools/device_record.py check             compare the newest record's sources with the tree's; exit 3 if they differ
    tools/device_record.py hash              the tree's
    tools/device_record.py header FILE       the tree's, as the header that device_test is built with

The sources are everything a kernel's result or speed can depend on. Comments and layout do not count. A record
is written by this program from what the programs printed, never by hand. Standard library only.
"""
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "docs/device"
SOURCES = ("src/comm/cuda/*", "src/comm/ptx/*", "src/comm/leaves.h", "src/ops/ptx/*", "src/ops/cuda/*", "src/ops/*/cuda/*", "src/ops/fixed_math.h",
           "src/ops/sample/uniform_draw.h", "src/models/cuda/*", "src/runtime/cuda/*", "src/tensor/cuda_check.h",
           "src/tensor/device_*.h", "src/tensor/pinned_buffer.h", "cmake/nibble_cuda.cmake")
# What nibble bench is asked for, by the folder in tests/data/models.
ENGINE_RUNS = (("gpt-oss-20b", ("--input-len", "1024", "--output-len", "128", "--concurrency", "1,8,32,64,128")),
               ("gpt-oss-120b", ("--input-len", "1024", "--output-len", "128", "--concurrency", "1,8,32,64,128")),
               ("gpt-oss-120b", ("--input-len", "8192", "--output-len", "32", "--concurrency", "1")))
SUITE_SECONDS, BENCH_SECONDS, ALL_SECONDS = 60, 120, 1800
COMMENTS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
CMAKE_COMMENTS = re.compile(r"#[^\n]*")


def normalised(path):
    """The text without comments and layout: formatting a file does not make it another one."""
    text = path.read_text()
    if path.suffix == ".cmake":
        text = CMAKE_COMMENTS.sub(" ", text)
    else:
        text = COMMENTS.sub(lambda found: found.group() if found.group()[0] == '"' else " ", text)
        text = re.sub(r'"\s+"', "", text)  # the formatter may cut a literal anywhere
    # A space counts only between words, and the order of includes not at all.
    includes = sorted(re.findall(r"^\s*#\s*include\s*(\S+)", text, re.M))
    text = re.sub(r"^\s*#\s*include[^\n]*", " ", text, flags=re.M)
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"(?<!\w) | (?!\w)", "", text)
    return "\n".join(includes) + "\n" + text


def sources_hash(root=ROOT):
    files = sorted({path for pattern in SOURCES for path in root.glob(pattern) if path.is_file()})
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()}\n{normalised(path)}\n".encode())
    return digest.hexdigest()[:16]


def newest_record(folder=RECORDS):
    """(path, record), or None: names begin with the time of the run."""
    files = sorted(folder.glob("*.json"))
    return (files[-1], json.loads(files[-1].read_text())) if files else None


def check(root=ROOT):
    """(equal, sentence)."""
    newest = newest_record(root / "docs/device")
    if newest is None:
        return False, "no run on a GPU is recorded yet; run make device-test where there is one"
    path, record = newest
    name, tree = path.relative_to(root).as_posix(), sources_hash(root)
    if record["sources"] != tree:
        return False, (f"the device code has changed since it last ran on a GPU: {name} is about sources "
                       f"{record['sources']}, the tree has {tree}; run make device-test where there is a GPU")
    if record["failed"]:
        return False, f"{name} is about this device code, and {len(record['failed'])} of its tests failed"
    return True, f"{name} is about this device code: {record['passed']} tests passed on {record['gpu']}"


def cases(report):
    for suite in report["testsuites"]:
        for case in suite["testsuite"]:
            yield f"{suite['name']}.{case['name']}", case


def suites(programs):
    """{suite: its tests}, as device_test lists them."""
    listed = subprocess.run([programs / "device_test", "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
    found, suite = {}, None
    for line in listed.splitlines():
        if line.startswith("  "):
            found[suite].append(line.split()[0])
        elif line and line.split()[0].endswith("."):  # what follows a name says of which type it is
            suite = line.split()[0][:-1]
            found[suite] = []
    return found


def said_by(*command):
    """What a program prints; nothing where it is missing."""
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    except FileNotFoundError:
        return ""


def commit_of(programs):
    """The commit that the programs were built from: a bundle says so itself, since where it runs there may be another tree."""
    said = programs / "COMMIT"
    return (said.read_text() if said.exists() else said_by("git", "describe", "--always", "--dirty", "--exclude=*")).strip() or "unknown"


def run_in_time(command, seconds, deadline):
    """How the command ended; None if it was by itself."""
    left = min(seconds, deadline - time.monotonic())
    if left <= 0:
        return "no time was left"
    try:
        subprocess.run(command, timeout=left, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return f"took longer than {left:.0f} s"
    return None


def run_tests(programs, folder, deadline):
    """{test: what it reported}. Each suite is a process of its own: a fault leaves a GPU's context useless, and a test
    that hangs must not cost the others their turn."""
    found = {}
    for suite, tests in suites(programs).items():
        report = folder / f"{suite.replace('/', '_')}.json"
        ended = run_in_time([programs / "device_test", f"--gtest_filter={suite}.*", f"--gtest_output=json:{report}"],
                            SUITE_SECONDS, deadline) or "ended without a report"
        if report.exists():
            found.update(cases(json.loads(report.read_text())))
        else:
            print(f"{suite}: {ended}", flush=True)
            found.update({f"{suite}.{test}": {"failures": [{"failure": ended}]} for test in tests})
    return found


def engine_runs(gpus):
    """On several GPUs the large model on one of them and on all."""
    if gpus == 1:
        return ENGINE_RUNS
    large = [(shape, load) for shape, load in ENGINE_RUNS if shape == "gpt-oss-120b"]
    return [(shape, (*load, "--tp", str(ranks))) for ranks in (1, gpus) for shape, load in large]


def run_engine(programs, gpus, deadline):
    """What nibble bench says of gpt-oss's shapes, with random weights."""
    found = []
    for shape, load in engine_runs(gpus):
        command = [programs / "nibble", "bench", f"tests/data/models/{shape}", "--random-weights", "1", *load]
        left = min(BENCH_SECONDS, deadline - time.monotonic())
        if left <= 0:
            break
        try:
            ended = subprocess.run([*command, "--json"], timeout=left, cwd=ROOT, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            continue
        print(" ".join(map(str, command[1:])), ended.stdout, ended.stderr, flush=True)
        if ended.returncode == 0:
            found.append({"command": " ".join(["nibble", *map(str, command[1:])]), **json.loads(ended.stdout)})
    return found


def run(programs, seconds):
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        found = run_tests(programs, Path(folder), deadline)
        facts = found.get("Device.IsOneTheKernelsWereWrittenFor", {})
        if facts.get("result") == "SKIPPED" or "gpu" not in facts:
            return "device_test found no GPU; nothing is recorded"
        figures, missing = {}, []
        for bench in sorted(programs.glob("*_cuda_bench")):
            figures_file = Path(folder) / f"{bench.name}.json"
            ended = run_in_time([bench, "--json", figures_file], BENCH_SECONDS, deadline)
            if figures_file.exists():
                figures[bench.name] = json.loads(figures_file.read_text())
            else:
                print(f"{bench.name}: {ended or 'ended without figures'}", flush=True)
                missing.append(bench.name)
        if (programs / "nibble").exists():
            figures["nibble_bench"] = run_engine(programs, int(facts.get("gpus", 1)), deadline)
    driver = said_by("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0].strip()
    failed = sorted(name for name, case in found.items() if case.get("failures"))
    skipped = sorted(name for name, case in found.items() if case.get("result") == "SKIPPED")
    write({"time": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "gpu": facts["gpu"],
           "gpus": int(facts.get("gpus", 1)), "driver": driver,
           "cuda": facts["cuda_runtime"], "commit": commit_of(programs), "sources": facts["sources"],
           "passed": len(found) - len(failed) - len(skipped), "failed": failed, "skipped": skipped,
           "tests": {name: {"seconds": float(case.get("time", "0s").rstrip("s"))} for name, case in sorted(found.items())},
           "figures": figures, "benchmarks_without_figures": missing})
    return None


def write(record):
    RECORDS.mkdir(parents=True, exist_ok=True)
    stamp = record["time"].replace(":", "").replace("-", "")
    several = f"-x{record['gpus']}" if record["gpus"] > 1 else ""
    file = RECORDS / f"{stamp}-{record['gpu'].lower().replace(' ', '-')}{several}.json"
    file.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{file.relative_to(ROOT)}: {record['passed']} passed, {len(record['failed'])} failed, {len(record['skipped'])} skipped")


def main():
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "run" and len(sys.argv) in (3, 4):
        problem = run(Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) == 4 else ALL_SECONDS)
        if problem:
            print(problem, file=sys.stderr)
        return 1 if problem else 0
    if command == "check":
        equal, sentence = check()
        print(sentence)
        return 0 if equal else 3
    if command == "hash":
        print(sources_hash())
        return 0
    if command == "header" and len(sys.argv) == 3:
        file, text = Path(sys.argv[2]), f'#define NIBBLE_DEVICE_SOURCES_HASH "{sources_hash()}"\n'
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text() != text:  # an untouched file rebuilds nothing
            file.write_text(text)
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
