#!/usr/bin/env python3
"""Builds and runs every test of the tree; the last line printed is "N passed, N failed, N skipped".

    tools/run_tests.py                 what `make test` runs, after its set-up
    tools/run_tests.py --sanitized     what `make test-sanitized` and CI run: the same, with sanitizers, watched kernels, fuzzers
    tools/run_tests.py --check         the inner loop: fast C++ tests, format, layers
    tools/run_tests.py --extended      everything, hours of two CPUs; --record FILE keeps the results
    tools/run_tests.py --only PART     some parts only (repeatable); a record keeps the other parts' results

Every GoogleTest case and every pytest case counts as one. Standard library only.
"""
import argparse
import concurrent.futures
import contextvars
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from test_selection import EMULATED, EMULATION, EXTENDED_COUNTS, SANITIZED, WATCHED

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
SUMMARY = BUILD / "test-summary.txt"
JOBS = os.cpu_count() or 2
SANITIZER_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:check_initialization_order=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}
LONGEST_GROUP = "reliability"  # of Python tests, a folder each; it begins first
LONGEST_ROOM = "engine"  # of C++ tests, likewise
NOTHING_CHOSEN = 5  # pytest's exit code where all tests of a folder are the extended run's


@dataclass
class Cost:
    """What work took: by the clock, and of all CPUs together, which other work on the machine hardly changes."""
    wall: float = 0
    cpu: float = 0

    def __str__(self):
        return f"{self.wall:.0f} s ({self.cpu:.0f} CPU s)"


@dataclass
class Outcome:
    """What a part found out."""
    passed: int = 0
    failed: list = field(default_factory=list)   # names
    skipped: list = field(default_factory=list)  # (name, reason)
    built: Cost = field(default_factory=Cost)
    ran: Cost = field(default_factory=Cost)
    waited: float = 0  # for its build, while nothing ran

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.built.cpu += other.built.cpu
        self.ran.cpu += other.ran.cpu

    def line(self):
        return f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"


class CpuTime:
    """The CPU time of finished commands, added up by any thread."""

    def __init__(self):
        self.lock = threading.Lock()
        self.seconds = 0.0

    def add(self, usage):
        with self.lock:
            self.seconds += usage.ru_utime + usage.ru_stime


BUILDING = CpuTime()
RUNNING = contextvars.ContextVar("the CPU time of the part that runs")  # parts may run side by side


def beside(call, items, at_once=max(1, JOBS // 2)):
    """call(item) of all, by default on half the CPUs: many tests use several threads themselves. Their CPU time is this
    part's."""
    contexts = [contextvars.copy_context() for _ in items]
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(lambda context, item: context.run(call, item), contexts, items)


def run(command, timeout=None, cpu=None, **environment):
    """(exit code, output) of a command; a timeout reads as a failure that says so. Its CPU time, with that of all that
    it started and waited for, goes to `cpu`, by default that of the part."""
    process = subprocess.Popen([str(part) for part in command], cwd=ROOT, env=os.environ | environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    expired = threading.Event()

    def stop():
        expired.set()
        process.kill()

    timer = threading.Timer(timeout, stop) if timeout else None
    if timer:
        timer.start()
    output = process.stdout.read().decode(errors="backslashreplace")
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if timer:
        timer.cancel()
    (cpu or RUNNING.get()).add(usage)
    if expired.is_set():
        return 124, output + f"\nstopped after {timeout} s\n"
    return process.returncode, output


def one(name, command, **options):
    """A command that is a test by itself."""
    code, output = run(command, **options)
    if code == 0:
        return Outcome(passed=1)
    print(output, end="" if output.endswith("\n") else "\n")
    return Outcome(failed=[name])


@dataclass
class Recipe:
    """What to build for a part; targets() is asked once the preset is configured, and none means all."""
    preset: str
    options: tuple = ()
    targets: object = tuple
    needs: str = ""  # a program without which there is nothing to build


RECIPES = {
    # What tests/ runs, which goes first: those tests wait more than they compute, and do so beside the others.
    # One extended test asks the server's own program.
    "python": Recipe("release", ("-DNIBBLE_TESTS=ON",), targets=lambda: ["programs_of_tests", "server_test"]),
    "emulation": Recipe("release", ("-DNIBBLE_TESTS=ON",), targets=lambda: [f"{name}_test" for name in EMULATION]),
    "release": Recipe("release", ("-DNIBBLE_TESTS=ON",), targets=lambda: [f"{name}_test" for name in tests_of_rooms()]),
    "benchmarks": Recipe("release", ("-DNIBBLE_BENCHMARKS=ON",), targets=lambda: ["benchmarks"]),
    # Instrumented copies of some of it, which nothing else needs.
    "races": Recipe("release", targets=lambda: [f"{name}_test" for name, _ in ctest_commands("release", "races")]),
    "threads": Recipe("release", targets=lambda: [f"{name}_test" for name, _ in ctest_commands("release", "threads")]),
    "fuzz": Recipe("fuzz", needs="clang++", targets=lambda: [*(f"{name}_test" for name in SANITIZED),
                                                              *(name for name, _ in ctest_commands("fuzz", "fuzz"))]),
    "sanitized": Recipe("fuzz", needs="clang++"),
    "tsan": Recipe("tsan"),
}


def tests_of_rooms():
    return [name for name, _ in ctest_commands("release", "fast") if name not in EMULATION]


def build(part):
    """Configures and builds; a failure is one failed test with the compiler's words."""
    recipe = RECIPES[part]
    if recipe.needs and not shutil.which(recipe.needs):
        return Outcome()
    begin, cpu = time.monotonic(), BUILDING.seconds
    outcome = one(f"configure {recipe.preset}", ["cmake", "--preset", recipe.preset, *recipe.options], cpu=BUILDING)
    if not outcome.failed:
        targets = recipe.targets()
        chosen = ["--target", *targets] if targets else []
        # Tests of the part before run meanwhile, and go first.
        command = ["nice", "-n", "10", "cmake", "--build", BUILD / recipe.preset, *chosen]
        outcome = one(f"build {recipe.preset}", command, cpu=BUILDING)
    if not outcome.failed:
        outcome = Outcome()
    outcome.built = Cost(time.monotonic() - begin, BUILDING.seconds - cpu)  # one build at a time
    print(f"   built what {part} needs in {outcome.built}", flush=True)
    return outcome


class Builds:
    """Builds what the parts need, one after the other in the parts' order, while those before run their tests."""

    def __init__(self, parts):
        self.builder = concurrent.futures.ThreadPoolExecutor(1)
        self.begun = {name: self.builder.submit(build, name) for name in parts if name in RECIPES}

    def wait(self, name):
        """The outcome of a part's build; nothing to wait for where it has none."""
        return self.begun[name].result() if name in self.begun else Outcome()


def read_xml(file, prefix):
    """Counts the cases of a JUnit file as GoogleTest and pytest write it."""
    outcome = Outcome()
    for case in ElementTree.parse(file).getroot().iter("testcase"):
        name = f"{prefix}{case.get('classname', '')}.{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed.append(name)
        elif skipped is not None or case.get("status") == "notrun":
            reason = (skipped.get("message") or skipped.text or "") if skipped is not None else "disabled in its source"
            outcome.skipped.append((name, " ".join(reason.split()[-40:]) or "no reason given"))
        else:
            outcome.passed += 1
    return outcome


def ctest_commands(preset, label):
    """(name, command) of the tests that a build folder registers under a label; the command is empty where the
    program is not built."""
    done = subprocess.run(["ctest", "--test-dir", BUILD / preset, "--show-only=json-v1", "-L", f"^{label}$"],
                          cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if done.returncode != 0:
        return []
    return [(test["name"], test.get("command", [])) for test in json.loads(done.stdout)["tests"]]


def run_google_test(preset, name, command, timeout, selection, **environment):
    """`selection` is a filter of GoogleTest's; an empty one takes every case."""
    xml = BUILD / preset / "results" / f"{name}.xml"
    xml.parent.mkdir(parents=True, exist_ok=True)
    xml.unlink(missing_ok=True)
    prefix = "" if preset == "release" else f"{preset}: "
    if not command:
        return Outcome(failed=[f"{prefix}{name}: its program was not built"])
    chosen = [f"--gtest_filter={selection}"] if selection else []
    # What is served beside it, or built for the next part, is held to times of its own.
    code, output = run(["nice", "-n", "5", *command, f"--gtest_output=xml:{xml}", *chosen], timeout=timeout,
                       **SANITIZER_ENVIRONMENT, **environment)
    outcome = read_xml(xml, prefix) if xml.exists() else Outcome()
    if code != 0:
        print(output)
        if not outcome.failed:
            outcome.failed.append(f"{prefix}{name} (exit code {code})")
    return outcome


def run_google_tests(preset, names=None, timeout=600, selections=None, label="fast", at_once=max(1, JOBS // 2), **environment):
    tests = [test for test in ctest_commands(preset, label) if names is None or test[0] in names]
    tests.sort(key=lambda test: test[0] != LONGEST_ROOM)
    outcome = Outcome()
    if not tests:
        outcome.failed.append(f"{preset}: no C++ tests are registered")

    def case(test):
        return run_google_test(preset, *test, timeout, (selections or {}).get(test[0]), **environment)

    for found in beside(case, tests, at_once):
        outcome.add(found)
    return outcome


def emulation_tests(args):
    return run_google_tests("release", EMULATION, timeout=1800, selections=None if args.extended else EMULATED)


def release_tests(args):
    # The last part of `make test`, when little else runs.
    at_once = max(1, JOBS // 2) if args.sanitized or args.extended else JOBS
    return run_google_tests("release", tests_of_rooms(), at_once=at_once, **(EXTENDED_COUNTS if args.extended else {}))


def race_tests(args):
    """The emulated kernels with every access to shared memory watched; g++ instruments them."""
    if not ctest_commands("release", "races"):
        return Outcome(skipped=[("races", "this compiler is not g++")])
    return run_google_tests("release", label="races", selections=None if args.extended else WATCHED)


def sanitized_tests(args):
    """The rooms that fuzz_tests leaves out, by the same compiler and sanitizers."""
    if not shutil.which("clang++"):
        return Outcome(skipped=[("sanitized tests", "clang++ is not installed")])
    others = [name for name, _ in ctest_commands("fuzz", "fast") if name not in SANITIZED]
    return run_google_tests("fuzz", others, timeout=1800)


def thread_sanitizer_tests(args):
    # The engine's take half an hour of two quiet CPUs.
    return run_google_tests("tsan", timeout=7200)


def short_thread_sanitizer_tests(args):
    """The thread pool and the engine's threads; g++ instruments what they share (src/engine/CMakeLists.txt)."""
    if not ctest_commands("release", "threads"):
        return Outcome(skipped=[("threads", "this compiler is not g++")])
    return run_google_tests("release", label="threads")


def served_tests(preset):
    """The program built with that preset's sanitizers serves the load of tests/reliability; a report ends it, and the test that asked."""
    python = BUILD / "venv/bin/python"
    if not python.exists():
        return Outcome(failed=[f"served-{preset}: build/venv is missing; run tools/setup.sh --python"])
    if preset == "fuzz" and not shutil.which("clang++"):
        return Outcome(skipped=[("all", "clang++ is missing")])
    built = one(f"build {preset}", ["cmake", "--build", BUILD / preset, "--target", "nibble"])
    if built.failed:
        return built
    xml = BUILD / preset / "served.xml"
    xml.unlink(missing_ok=True)
    # Half an hour of a quiet CPU, two beside other work.
    code, output = run([python, "-m", "pytest", "tests/reliability", "-q", "--junitxml", xml, "-m", "not extended"], timeout=10800,
                       NIBBLE_BINARY=str(BUILD / preset / "nibble"), **SANITIZER_ENVIRONMENT)
    outcome = read_xml(xml, "") if xml.exists() else Outcome()
    if code != 0:
        print(output)
        if not outcome.failed:
            outcome.failed.append(f"served-{preset} (exit code {code})")
    return outcome


def python_groups():
    """Where in tests/ there are Python tests: each folder, and the files beside them."""
    tests = ROOT / "tests"
    files = sorted(path.relative_to(tests) for path in tests.rglob("*_test.py"))
    groups = {"tests": [tests / file for file in files if len(file.parts) == 1]}
    groups |= {file.parts[0]: [tests / file.parts[0]] for file in files if len(file.parts) > 1}
    return sorted(groups.items(), key=lambda group: group[0] != LONGEST_GROUP)


def run_pytest(name, paths, args):
    xml = BUILD / f"pytest/{name}.xml"
    xml.parent.mkdir(exist_ok=True)
    xml.unlink(missing_ok=True)
    left_out = () if args.extended else ("extended",) if args.sanitized else ("extended", "long")
    marker = ["-m", " and ".join(f"not {name}" for name in left_out)] if left_out else []
    # What that group serves is held to times.
    behind = [] if name == LONGEST_GROUP else ["nice", "-n", "5"]
    code, output = run([*behind, BUILD / "venv/bin/python", "-m", "pytest", *paths, "-q", "--junitxml", xml, *marker],
                       timeout=None if args.extended else 2400)
    outcome = read_xml(xml, "") if xml.exists() else Outcome()
    if code not in (0, NOTHING_CHOSEN):
        print(output)
        if not outcome.failed:
            outcome.failed.append(f"pytest: {name} (exit code {code})")
    return outcome


def python_tests(args):
    """`make test` runs groups of tests side by side, as one waits for half of its time."""
    if not (BUILD / "venv/bin/python").exists():
        return Outcome(failed=["pytest: build/venv is missing; run tools/setup.sh --python"])
    at_once = 1 if args.extended or args.sanitized else max(2, JOBS // 2)
    outcome = Outcome()
    for found in beside(lambda group: run_pytest(*group, args), python_groups(), at_once):
        outcome.add(found)
    return outcome


def fuzz_tests(args):
    """By clang with sanitizers: the tests of SANITIZED, and a short run of each fuzzer from its committed corpus.
    One build serves both. What a fuzzer finds stays in build/fuzz/found/<name>."""
    if not shutil.which("clang++"):
        return Outcome(skipped=[("sanitized tests and fuzzers", "clang++ is not installed")])
    outcome = run_google_tests("fuzz", SANITIZED)
    seconds = 60 if args.extended else 5
    for name, command in ctest_commands("fuzz", "fuzz"):
        if not command:
            outcome.failed.append(f"fuzz: {name}: its program was not built")
            continue
        program, *corpus = command
        folder = BUILD / "fuzz/found" / name
        folder.mkdir(parents=True, exist_ok=True)
        outcome.add(one(f"fuzz: {name}", [
            program, f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=4096", "-print_final_stats=1",
            f"-artifact_prefix={folder}/", folder, *corpus], timeout=seconds + 120, **SANITIZER_ENVIRONMENT))
    return outcome


def bundle(args):
    outcome = one("bundle", [ROOT / "tools/bundle.sh"])
    # What nvcc makes of the device code, minutes of work; make test runs the same sources on the emulation.
    if args.extended and shutil.which("nvcc"):
        outcome.add(one("device bundle", [ROOT / "tools/device_bundle.sh"]))
    return outcome


def format_check(args):
    code, output = run([ROOT / "tools/format.sh", "--check"])
    if code == 77:
        return Outcome(skipped=[("format", output.strip())])
    if code != 0:
        print(output)
        return Outcome(failed=["format: run make format"])
    return Outcome(passed=1)


def layer_check(args):
    return one("layers", [sys.executable, ROOT / "tools/layers.py"])


def device_record(args):
    """Whether the device code is what last ran on a GPU. Machines without one can build it but not tell."""
    code, output = run([sys.executable, ROOT / "tools/device_record.py", "check"])
    if code == 3:
        return Outcome(skipped=[("device record", output.strip())])
    if code != 0:
        print(output)
        return Outcome(failed=["device record"])
    return Outcome(passed=1)


# What a stranger with a fresh Debian types, and the compilers that newer systems bring: (name, options of bare_root.sh).
ALL_OF_IT = ("tools/setup.sh build test && cmake --preset release -DNIBBLE_TESTS=ON -DNIBBLE_BENCHMARKS=ON"
             " -DNIBBLE_PRECOMPILED=OFF && cmake --build build/release")
BARE_ROOTS = (
    ("make demo on Debian 12", ("--suite", "bookworm")),
    ("make demo on Debian 13, and everything by g++ 14", ("--suite", "trixie", "--", "bash", "-ec", f"make demo && {ALL_OF_IT}")),
    ("everything by g++ 13", ("--suite", "trixie", "--compiler", "g++-13", "--", "bash", "-ec", ALL_OF_IT)),
    ("everything by clang 19", ("--suite", "trixie", "--compiler", "clang-19", "--", "bash", "-ec", ALL_OF_IT)),
)


def bare_roots(args):
    """The tree in bare roots of Debian, an hour of two quiet CPUs."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        return Outcome(skipped=[("bare roots", "debootstrap and root are needed")])
    outcome = Outcome()
    for name, options in BARE_ROOTS:
        outcome.add(one(f"bare root: {name}", [ROOT / "tools/bare_root.sh", *options], timeout=7200))
    return outcome


def benchmarks(args):
    """That they compile, which is all that there is to judge."""
    return Outcome(passed=1)


PARTS = {
    "layers": layer_check,
    "format": format_check,
    "device-record": device_record,
    "emulation": emulation_tests,
    "release": release_tests,
    "races": race_tests,
    "bundle": bundle,
    "benchmarks": benchmarks,
    "threads": short_thread_sanitizer_tests,
    "fuzz": fuzz_tests,
    "sanitized": sanitized_tests,
    "tsan": thread_sanitizer_tests,
    "python": python_tests,
    "served-fuzz": lambda args: served_tests("fuzz"),
    "served-tsan": lambda args: served_tests("tsan"),
    "bare-roots": bare_roots,
}
CHECK = ("layers", "format", "release", "emulation")
EXTENDED = tuple(name for name in PARTS if name != "threads")  # which is a selection of tsan
TEST = ("layers", "format", "device-record", "python", "release")
SANITIZED_TEST = ("layers", "format", "device-record", "emulation", "release", "races", "threads", "bundle", "python", "benchmarks", "fuzz")
# These tests wait more than they compute, and do so beside the others in `make test`. What else CI and the extended run do
# would leave a step of the emulated GPU too little of two CPUs.
BESIDE = "python"


def commit_of_tree(record):
    """Its hash; what is changed beside the record itself makes it a dirty one."""
    def said(*command):
        return subprocess.run(["git", *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
    changed = said("status", "--porcelain", "--untracked-files=no", "--", ".", f":(exclude){record}")
    return (said("rev-parse", "--short", "HEAD") or "unknown") + ("-dirty" if changed else "")


def machine(record):
    """Where results come from: commit, system, CPU, compilers."""
    def first_line(*command):
        try:
            return run(command, cpu=CpuTime())[1].splitlines()[0]
        except (OSError, IndexError):
            return "none"
    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.processor())
    system = next((line.split("=")[1].strip('"') for line in Path("/etc/os-release").read_text().splitlines()
                   if line.startswith("PRETTY_NAME")), platform.system())
    return [("date", date.today().isoformat()), ("commit", commit_of_tree(record)),
            ("system", system), ("CPU", f"{cpu}, {JOBS} used"), ("g++", first_line("g++", "--version")),
            ("clang++", first_line("clang++", "--version")),
            ("ccache", "used" if shutil.which("ccache") and "CCACHE_DISABLE" not in os.environ else "not used")]


HEADINGS = ("part", "commit", "passed", "failed", "skipped", "build s", "its CPU s", "run s", "its CPU s")


def record(file, outcomes):
    """Results in Markdown: a row of each part, then what failed or was skipped, each line with its part's name. Parts
    that did not run now keep what an earlier run found, with its commit."""
    file, facts = Path(file), machine(file)
    rows, remarks = {}, {}
    for line in file.read_text().splitlines() if file.exists() else ():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == len(HEADINGS) and cells[0] in EXTENDED:
            rows[cells[0]] = cells
        elif line.startswith("- "):
            remarks.setdefault(line.split(": ")[1], []).append(line)
    for name, outcome in outcomes.items():
        seconds = (outcome.built.wall, outcome.built.cpu, outcome.ran.wall, outcome.ran.cpu)
        rows[name] = [name, dict(facts)["commit"], *(str(count) for count in (outcome.passed, len(outcome.failed), len(outcome.skipped))),
                      *(f"{value:.0f}" for value in seconds)]
        remarks[name] = [f"- failed: {name}: {case}" for case in outcome.failed] + [f"- skipped: {name}: {case}: {why}" for case, why in outcome.skipped]
    rows = {name: rows[name] for name in EXTENDED if name in rows}
    sums = [str(sum(int(row[column]) for row in rows.values())) for column in range(2, len(HEADINGS))]
    table = lambda cells: f"| {' | '.join(cells)} |"
    left_out = [name for name in EXTENDED if name not in rows]
    lines = ["# Results of `make test-extended`", "", "Written by `tools/run_tests.py --extended --record`; not edited by hand. Builds go on while",
             "tests run, so a run takes less by the clock than its parts together.", "", "| | |", "| --- | --- |", *(table(fact) for fact in facts), "",
             table(HEADINGS), "| --- | --- |" + " ---: |" * (len(HEADINGS) - 2), *(table(row) for row in rows.values()), table(["all", "", *sums]), "",
             *([f"Not part of it yet: {', '.join(left_out)}.", ""] if left_out else []), *(line for name in rows for line in remarks.get(name, ()))]
    # Where this tree lies is nobody's business.
    file.write_text(("\n".join(lines).rstrip() + "\n").replace(f"{ROOT}/", ""))


def run_part(name, builds, args):
    """What a part found out, and what it cost."""
    RUNNING.set(CpuTime())
    begin = time.monotonic()
    built = builds.wait(name)
    begun = time.monotonic()
    outcome = built if built.failed else PARTS[name](args)
    outcome.built, outcome.waited = built.built, begun - begin
    outcome.ran = Cost(time.monotonic() - begun, RUNNING.get().seconds)
    print(f"== {name}: {outcome.line()}; ran {outcome.ran}, waited {outcome.waited:.0f} s for its build", flush=True)
    return outcome


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--check", action="store_true")
    kind.add_argument("--sanitized", action="store_true")
    kind.add_argument("--extended", action="store_true")
    parser.add_argument("--record", metavar="FILE")
    parser.add_argument("--only", metavar="PART", action="append", choices=PARTS)
    args = parser.parse_args()
    chosen = CHECK if args.check else EXTENDED if args.extended else SANITIZED_TEST if args.sanitized else TEST
    parts = args.only or chosen
    BUILD.mkdir(exist_ok=True)
    SUMMARY.unlink(missing_ok=True)

    total, start = Outcome(), time.monotonic()
    builds = Builds(parts)
    with concurrent.futures.ThreadPoolExecutor(1) as beside_others:
        is_beside = parts == TEST
        aside = beside_others.submit(run_part, BESIDE, builds, args) if is_beside else None
        outcomes = {}
        for name in parts:
            if is_beside and name == BESIDE:
                continue
            outcomes[name] = run_part(name, builds, args)
            if args.record:  # at once: hours may follow
                record(args.record, {name: outcomes[name]})
        if aside:
            outcomes[BESIDE] = aside.result()
    for outcome in outcomes.values():
        total.add(outcome)
    total.ran.wall = time.monotonic() - start
    for name, reason in total.skipped:
        print(f"skipped: {name}: {reason}")
    for name in total.failed:
        print(f"FAILED: {name}")
    SUMMARY.write_text(total.line() + "\n")
    print(f"{'part':14} {'build s':>8} {'CPU s':>8} {'run s':>8} {'CPU s':>8}")
    for name, outcome in outcomes.items():
        print(f"{name:14} {outcome.built.wall:8.0f} {outcome.built.cpu:8.0f} {outcome.ran.wall:8.0f} {outcome.ran.cpu:8.0f}")
    print(f"all parts took {total.ran.wall:.0f} s by the clock and {total.built.cpu + total.ran.cpu:.0f} CPU s")
    print(total.line(), flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
