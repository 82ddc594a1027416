#!/usr/bin/env python3
"""The layer check: what a file may include and use, by the room it lives in (docs/internals/architecture.md), and that no two files
define the same name.

    tools/layers.py [TREE]     prints every violation as path:line: what, and exits 1 if there is one

Standard library only, and quick: it runs in every `make check`.
"""
import re
import sys
from pathlib import Path

from cpp_definitions import definitions

# room: the rooms its arrows point to. A room may include itself and whatever it reaches.
ARROWS = {
    "app": ("server", "quantize"),
    "server": ("engine", "grammar"),
    "grammar": ("text", "core"),
    "engine": ("sched", "runtime"),
    "sched": ("cache",),
    "cache": ("core",),
    "core": ("base",),
    "text": ("base",),
    "runtime": ("models", "core"),
    "models": ("plan", "checkpoint"),
    "plan": ("ops",),
    "ops": ("comm", "formats"),
    "quantize": ("checkpoint",),
    "checkpoint": ("formats", "tensor", "hub"),
    "hub": ("net",),
    "net": ("base",),
    "comm": ("tensor",),
    "formats": ("tensor",),
    "tensor": ("base",),
    "base": (),
}

# Rooms that build and test in seconds on any machine.
HOST_ONLY = ("base", "net", "hub", "core", "cache", "sched", "text", "grammar", "server", "plan")

CUDA_HEADER = re.compile(
    r"(^|/)(cuda|cublas|cudnn|cufft|curand|cusparse|cusolver|nccl|nvrtc|nvml|nvtx|nvToolsExt|device_launch_parameters"
    r"|driver_types|vector_types|cooperative_groups|mma\.h|cutlass|cute|cub|thrust)|\.cuh$")

# Where device code lives in the other rooms.
DEVICE_CODE = re.compile(r"src/tensor/(cuda_check|device_buffer|pinned_buffer)\.h$|src/ops/(ptx|cuda|[^/]+/cuda)/|src/(models|runtime)/cuda/|src/comm/")
# The only place for instructions that the language lacks.
ASSEMBLY_WRAPPERS = re.compile(r"src/(ops|comm)/ptx/")

# A library that we chose to see in few files: prefix of the header, and where it may be included.
CONFINED = (
    ("spdlog/", re.compile(r"src/base/log[^/]*\.cpp$")),
    ("fmt/", re.compile(r"src/base/log[^/]*\.cpp$")),
    ("asio", re.compile(r"src/server/http/(connection\.(cpp|h)|socket_(server\.cpp|stream\.(cpp|h)))$|app/http_client\.cpp$")),
    ("openssl/", re.compile(r"src/server/http/socket_stream\.cpp$|src/net/(connection|tls)\.cpp$|src/hub/digest\.cpp$|src/comm/link_key\.cpp$")),
    ("pcre2", re.compile(r"src/text/.*\.cpp$")),
    ("utf8proc", re.compile(r"src/text/.*\.cpp$|app/display_text\.cpp$")),
    ("simdjson", re.compile(r"_test\.cpp$|_bench\.cpp$")),
    ("rapidcheck", re.compile(r"_test\.cpp$|test_util\.h$")),
    ("gtest/", re.compile(r"_test\.cpp$|test_util\.h$")),
)

# Stands in for src/ops/ptx and src/comm/ptx, in programs that have no part of those.
EMULATION = re.compile(r"src/ops/cuda/emulation/include/")
# Are text of the files that include them, inside their namespaces.
PARTS = {".inc"}

SOURCES = {".h", ".hpp", ".inc", ".c", ".cc", ".cpp", ".cu", ".cuh"}
KERNELS = {".cu", ".cuh"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^">]+)[">]', re.M)
STD_REGEX = re.compile(r"\bstd\s*::\s*(?:w?c?s?regex\b|regex_\w+|basic_regex\b|[cs]match\b)")
FLOAT = r"(?:float[1-4]?|double[1-4]?|half2?|bf16|bfloat16|fp16|fp32|f32|__half2?|__nv_bfloat162?|nv_bfloat162?|__nv_fp8\w+)"
INTEGER = (r"(?:unsigned(?:\s+(?:int|long(?:\s+long)?))?|int|long\s+long|(?:std::)?u?int(?:32|64)_t|(?:std::)?size_t|TokenId)")
CPP_FLOAT_ATOMIC = re.compile(rf"\batomic(?:_ref)?\s*<\s*(?:nibble\s*::\s*)?{FLOAT}\b")
INLINE_ASSEMBLY = re.compile(r"\b(?:asm|__asm__)\b\s*(?:volatile\b|__volatile__\b)?\s*\(")
PTX_FLOAT_ATOMIC = re.compile(r"\b(?:atom|red|multimem\.red|cp\.reduce)\b[\w.:]*\.(?:f16x2|f16|bf16x2|bf16|f32|f64)\b")
ATOMIC_CALL = re.compile(r"\b(?:unsafe)?[aA]tomic(?:Add|Sub)(?:_block|_system)?\s*\(")


def reachable(room):
    """The room and every room its arrows lead to."""
    seen, left = set(), [room]
    while left:
        at = left.pop()
        if at not in seen:
            seen.add(at)
            left += ARROWS[at]
    return seen


REACHES = {room: reachable(room) for room in ARROWS}


COMMENT_OR_LITERAL = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^()\\ \n]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.S)


def blanked(text):
    """The text with comments turned into spaces, and with literals too; lines stay where they are."""
    with_strings, code, at = [], [], 0
    for match in COMMENT_OR_LITERAL.finditer(text):
        found, before = match.group(), text[at:match.start()]
        spaces = re.sub(r"[^\n]", " ", found) if "\n" in found else " " * len(found)
        with_strings += before, found if found[0] in "\"'R" else spaces
        code += before, spaces
        at = match.end()
    return "".join(with_strings) + text[at:], "".join(code) + text[at:]


def room_of(path):
    """The room of a path relative to the tree: src/<room>/... or app/...; None elsewhere."""
    parts = Path(path).parts
    if parts[0] == "app":
        return "app"
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    return None


def check_cuda_header(path, room, at, header):
    if room in HOST_ONLY:
        yield at, f"CUDA header {header} in {room}, which builds without the toolkit"
    elif not DEVICE_CODE.search(path):
        yield at, f"CUDA header {header} outside the device code; in ops it lives in <op>/cuda/ and ptx/"


def check_includes(path, room, code):
    for match in INCLUDE.finditer(code):
        quoted, header = match.group(1) == '"', match.group(2)
        if header == "regex":
            yield match.start(), "<regex> overflows the stack on long input; write a scanner, or use PCRE2 in src/text"
        for prefix, where in CONFINED:
            if header.startswith(prefix) and not where.search(path):
                yield match.start(), f"<{header}> belongs behind a header of ours, in a file like {where.pattern}"
        target = header.split("/")[0]
        if target not in ARROWS or "/" not in header:
            if CUDA_HEADER.search(header):
                yield from check_cuda_header(path, room, match.start(), header)
            elif quoted:
                yield match.start(), f'"{header}" is not written from src/ or app/, as "room/file.h"'
        elif target not in REACHES[room]:
            back = "up" if room in REACHES[target] else "sideways"
            yield match.start(), f"{room} may not include {target} ({back}); it may include {', '.join(sorted(REACHES[room]))}"
        elif CUDA_HEADER.search(header):
            yield from check_cuda_header(path, room, match.start(), header)


def first_argument(code, begin):
    """The text of a call's first argument; `begin` is just behind the parenthesis."""
    depth = 0
    for at in range(begin, len(code)):
        if code[at] in "([{":
            depth += 1
        elif code[at] in ")]}":
            depth -= 1
            if depth < 0:
                return code[begin:at]
        elif code[at] == "," and depth == 0:
            return code[begin:at]
    return code[begin:]


def is_integer_target(argument, code, beside):
    """Whether an atomic's address is certainly an integer's: by a cast, by a declaration in the same file, or, of a
    member, in a header beside it."""
    if re.search(rf"\b{FLOAT}\s*\*", argument):
        return False
    if re.search(rf"\b{INTEGER}\s*\*", argument):
        return True
    while "[" in argument and (shorter := re.sub(r"\[[^\[\]]*\]", "", argument)) != argument:
        argument = shorter
    names = re.findall(r"[A-Za-z_]\w*", argument)
    if not names:
        return False
    declared = r"\b{}(?:\s+const)?\s*(?:[*&]\s*(?:__restrict__\s*)?)?(?:const\s+)?" + re.escape(names[-1]) + r"\b"
    places = [code] + ([beside] if len(names) > 1 else [])
    if any(re.search(declared.format(FLOAT), place) for place in places):
        return False
    return any(re.search(declared.format(INTEGER), place) for place in places)


def check_kernels(path, code, with_strings, beside):
    """Sums of floats in the order of arrival, whose bits would depend on timing; assembly outside its wrappers."""
    if "atomic" in code:
        for match in CPP_FLOAT_ATOMIC.finditer(code):
            yield match.start(), "an atomic of a float; reductions have a fixed order"
    if any(kind in with_strings for kind in (".f16", ".bf16", ".f32", ".f64")):
        for match in PTX_FLOAT_ATOMIC.finditer(with_strings):
            yield match.start(), f"float atomic {match.group()}; reductions have a fixed order"
    if Path(path).suffix not in KERNELS:
        return
    if not ASSEMBLY_WRAPPERS.search(path):
        for match in INLINE_ASSEMBLY.finditer(code):
            yield match.start(), "inline assembly in a kernel; give the instruction a wrapper in src/ops/ptx/"
    for match in ATOMIC_CALL.finditer(code):
        if not is_integer_target(first_argument(code, match.end()), code, beside):
            yield match.start(), ("an atomic addition whose target is not plainly an integer here; "
                                  "reductions of floats have a fixed order")


def check_text(path, text, beside=""):
    """Violations of one file as (line, what). beside: the headers of its folder."""
    return check_file(path, *blanked(text), beside)


def check_file(path, with_strings, code, beside):
    room = room_of(path)
    if room is None:
        return []
    if room not in ARROWS:
        return [(1, f"{room} is no room of docs/internals/architecture.md; a new one gets its arrows in tools/layers.py")]
    found = list(check_includes(path, room, with_strings))
    if "regex" in code or "match" in code:
        found += [(match.start(), "std::regex overflows the stack on long input; write a scanner, or use PCRE2 in src/text")
                  for match in STD_REGEX.finditer(code)]
    found += check_kernels(path, code, with_strings, blanked(beside)[1])
    return sorted({(line_of(code, at), what) for at, what in found})


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def check_definitions(codes):
    """Violations of the one-definition rule, as lines of text: of each name that several files define, all places but the first.
    codes: each path's text without comments and literals."""
    first = {}
    for path, code in codes.items():
        if EMULATION.match(path) or Path(path).suffix in PARTS:
            continue
        for entity, at in definitions(code):
            other, there = first.setdefault(entity, (path, at))
            if other != path:
                kind, name, more = entity
                parameters = more[:more.rindex(")") + 1] if kind == "function" else ""
                yield (f"{path}:{line_of(code, at)}: {kind} {name}{parameters} is defined in {other}:{line_of(codes[other], there)} "
                       "as well; the linker keeps one of each inline function and variable, and uses it for both: rename one, or "
                       "put it in an anonymous namespace")


def check_tree(tree):
    """Every violation below a tree, as lines of text."""
    lines, codes = [], {}
    for folder in ("src", "app"):
        for file in sorted((tree / folder).rglob("*")):
            if file.suffix in SOURCES and file.is_file():
                path = file.relative_to(tree).as_posix()
                text = file.read_text(encoding="utf-8", errors="replace")
                beside = headers_beside(file) if ATOMIC_CALL.search(text) else ""
                with_strings, codes[path] = blanked(text)
                lines += [f"{path}:{line}: {what}" for line, what in check_file(path, with_strings, codes[path], beside)]
    return lines + list(check_definitions(codes))


def headers_beside(file):
    return "\n".join(header.read_text(encoding="utf-8", errors="replace") for header in sorted(file.parent.iterdir())
                     if header.suffix in (".h", ".cuh") and header != file)


def main():
    tree = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    violations = check_tree(tree)
    for line in violations:
        print(line)
    if not violations:
        print("layers: every include points down, and each name has one definition")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
