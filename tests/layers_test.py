"""The layer check catches a planted violation of every rule, and lets pass what only looks like one."""
import subprocess
import sys

import pytest

from nibble_program import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import layers  # noqa: E402


def violations(path, text):
    return [what for _, what in layers.check_text(path, text)]


PLANTED = {
    "an include that points up": ("src/base/a.h", '#include "text/tokenizer.h"\n', "base may not include text (up)"),
    "up by one": ("src/cache/a.cpp", '#include "sched/scheduler.h"\n', "cache may not include sched (up)"),
    "sideways": ("src/text/a.cpp", '#include "core/request.h"\n', "text may not include core (sideways)"),
    "sideways between formats and comm": ("src/formats/a.h", '#include "comm/ring.h"\n', "(sideways)"),
    "a tensor in the server": ("src/text/a.h", '#include <tensor/tensor.h>\n', "text may not include tensor"),
    "a room that has no arrows": ("src/misc/a.h", "int x;\n", "misc is no room"),
    "an include with no room": ("src/base/a.cpp", '#include "json.h"\n', "is not written from src/"),
    "a relative include": ("src/base/a.cpp", '#include "../core/request.h"\n', "is not written from src/"),
    "std::regex": ("app/a.cpp", "bool f(const std::string& s) { return std::regex_match(s, std::regex(s)); }\n", "std::regex"),
    "the regex header": ("src/text/a.cpp", "#include <regex>\n", "<regex>"),
    "the regex header, spaced": ("src/text/a.cpp", "  #  include <regex>\n", "<regex>"),
    "spdlog in a header": ("src/base/log.h", "#include <spdlog/spdlog.h>\n", "belongs behind a header"),
    "simdjson outside tests": ("src/text/a.cpp", "#include <simdjson.h>\n", "belongs behind a header"),
    "a float atomicAdd": ("src/ops/moe/cuda/a.cu", "__global__ void k(float* out) { atomicAdd(out, 1.0f); }\n", "atomic addition"),
    "a float atomicAdd through an index": (
        "src/ops/moe/cuda/a.cuh", "__device__ void k(float* out, int i) { atomicAdd(&out[i], 1.0f); }\n", "atomic addition"),
    "a bf16 atomicAdd by cast": (
        "src/ops/moe/cuda/a.cu", "__device__ void k(void* p) { atomicAdd((__nv_bfloat162*)p, v); }\n", "atomic addition"),
    "an atomicAdd of unknown type": (
        "src/ops/moe/cuda/a.cu", "template <class T> __device__ void k(T* p) { atomicAdd(p, T(1)); }\n", "atomic addition"),
    "a CUDA atomic of a float": (
        "src/ops/moe/cuda/a.cu", "cuda::atomic_ref<float, cuda::thread_scope_device> sum(x);\n", "an atomic of a float"),
    "a C++ atomic of a double": ("src/ops/moe/moe_cpu.cpp", "std::atomic<double> sum;\n", "an atomic of a float"),
    "a PTX reduction": (
        "src/ops/ptx/red.cuh", 'asm volatile("red.global.add.f32 [%0], %1;" :: "l"(p), "f"(v));\n', "float atomic red.global.add.f32"),
    "a PTX vector reduction": (
        "src/ops/ptx/red.cuh", 'asm("red.relaxed.sys.global.add.noftz.bf16x2 [%0], %1;");\n', "float atomic"),
    "a PTX atomic": ("src/ops/ptx/atom.cuh", 'asm("atom.add.f64 %0, [%1], %2;");\n', "float atomic"),
    "a CUDA header in a host op": ("src/ops/moe/moe_cpu.cpp", "#include <cuda_runtime.h>\n", "outside the device code"),
    "a CUDA header in the models": ("src/models/a.cpp", '#include "ops/ptx/mma.cuh"\n', "outside the device code"),
    "assembly in a kernel": (
        "src/ops/moe/cuda/a.cu", '__device__ void k() { asm volatile("bar.sync 1;"); }\n', "a wrapper in src/ops/ptx/"),
    "a bulk reduction": (
        "src/ops/ptx/tma.cuh", 'asm("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [%0], [%1], %2;");\n', "float atomic"),
}
PLANTED |= {
    f"a CUDA header in {room}": (f"src/{room}/a.cpp", f"#include <{header}>\n", "CUDA header")
    for room, header in zip(layers.HOST_ONLY, ("cuda_runtime.h", "cuda.h", "cublasLt.h", "nccl.h", "cooperative_groups.h",
                                               "cub/block/block_scan.cuh", "nvtx3/nvToolsExt.h"))
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_caught(name):
    path, text, expected = PLANTED[name]
    assert any(expected in what for what in violations(path, text)), violations(path, text)


HARMLESS = {
    "down, with a hop between": ("src/sched/a.cpp", '#include "base/status.h"\n#include "core/request.h"\n'),
    "the own room": ("src/text/a.cpp", '#include "text/tokenizer.h"\n#include <vector>\n'),
    "a comment": ("src/base/a.cpp", '// #include <regex>\n/* std::regex,\n#include "server/http.h" */\n'),
    "a string": ("src/base/a.cpp", 'const char* s = "std::regex"; // never\n'),
    "a digit separator": ("src/base/a.cpp", "int n = 1'000'000; // it's fine\n#include <vector>\nint m = 2'000;\n"),
    "an integer atomicAdd": ("src/ops/moe/cuda/a.cu", "__global__ void k(int* n) { atomicAdd(n, 1); }\n"),
    "a counter in an array": (
        "src/ops/moe/cuda/a.cu", "__global__ void k(unsigned* count, int e) { atomicAdd(&count[e], 1u); }\n"),
    "an integer by cast": (
        "src/ops/moe/cuda/a.cu", "__device__ void k(void* p) { atomicAdd(reinterpret_cast<unsigned long long*>(p), 1ull); }\n"),
    "a PTX integer reduction": ("src/ops/ptx/red.cuh", 'asm("red.release.gpu.global.add.s32 [%0], 1;");\n'),
    "an atomic counter": ("src/base/a.cpp", "std::atomic<unsigned> ticket;\n"),
    "a CUDA header where kernels live": ("src/ops/moe/cuda/a.cu", "#include <cuda_runtime.h>\n"),
    "a file outside the rooms": ("tools/a.cpp", '#include "server/http.h"\n'),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_looks_like_a_violation_passes(name):
    path, text = HARMLESS[name]
    assert violations(path, text) == []


def test_a_violation_fails_the_command_and_names_the_line(tmp_path):
    (tmp_path / "src/base").mkdir(parents=True)
    (tmp_path / "src/base/bad.h").write_text('#pragma once\n\n#include "engine/engine.h"\n')
    done = subprocess.run([sys.executable, ROOT / "tools/layers.py", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.startswith("src/base/bad.h:3: base may not include engine (up)")


@pytest.mark.parametrize("kind, violates", [("std::uint32_t*", False), ("float*", True), ("int", False), ("float", True)])
def test_the_type_of_a_member_is_looked_up_in_the_headers_beside_it(tmp_path, kind, violates):
    folder = tmp_path / "src/ops/moe/cuda"
    folder.mkdir(parents=True)
    (folder / "places.cuh").write_text(f"struct Places {{ {kind} next; }};\n")
    argument = "p[i[0]].places.next" if kind.endswith("*") else "&p[i[0]].places.next"
    (folder / "k.cuh").write_text(f"template <class P> __device__ void k(P p, int* i) {{ atomicAdd({argument}, 1); }}\n")
    (folder / "other.cuh").write_text("template <class P> __device__ void k(P next) { atomicAdd(next, 1); }\n")
    found = layers.check_tree(tmp_path)
    assert [line.split(":")[0] for line in found] == ["src/ops/moe/cuda/k.cuh"] * violates + ["src/ops/moe/cuda/other.cuh"]


def in_namespace(*lines, name="nibble"):
    return f"#pragma once\nnamespace {name} {{\n" + "\n".join(lines) + f"\n}}  // namespace {name}\n"


def clashes(*texts, paths=("src/base/a.h", "src/text/b.cpp")):
    return list(layers.check_definitions(dict(zip(paths, (layers.blanked(text)[1] for text in texts)))))


# Two files that define one name, and the name.
DEFINED_TWICE = {
    "a struct": ("struct Scales { int a; };", "struct Scales {\n  float b;\n};", "type nibble::Scales"),
    "a struct and a class": ("struct alignas(64) Scales { };", "class Scales final : public Base<int> { };", "type nibble::Scales"),
    "an enumeration and a union": ("enum class Kind : int { one };", "union Kind { int a; };", "type nibble::Kind"),
    "class templates": ("template <class T> struct Box { T a; };", "template <int n>\nstruct Box { };", "type nibble::Box"),
    "a specialisation": ("template <> struct Box<int> { };", "template <>\nstruct Box< int > { };", "type nibble::Box<int>"),
    "a nested type": ("struct Gate::Slot { };", "class Gate::Slot { };", "type nibble::Gate::Slot"),
    "inline functions": ("inline int f(const Row& a, int n = 0) { return n; }", "constexpr int f(const Row& b, int) { return 1; }",
                         "function nibble::f(const Row&,int)"),
    "an inline function with a value in braces": (
        "inline int f(Row a = {}) { return 0; }", "inline int f(Row a) { return 1; }", "function nibble::f(Row)"),
    "operators": ("inline bool operator==(Row a, Row b) { return true; }", "inline bool operator==(Row, Row) { return false; }",
                  "function nibble::operator==(Row,Row)"),
    "members outside of their class": ("inline int Row::size() const { return 1; }", "inline int Row::size() const { return 2; }",
                                       "function nibble::Row::size()"),
    "function templates": ("template <class T> void f(T a) { }", "template <class T>\nvoid f(T b) { }", "function nibble::f(T)"),
    "device functions": ("__device__ __forceinline__ int f(int a) { return 0; }", "inline int f(int) { return 1; }",
                         "function nibble::f(int)"),
    "inline variables": ("inline constexpr int most = 256;", "inline constexpr std::int64_t least = f(1, 2), most{4096};",
                         "variable nibble::most"),
    "behind what goes on after braces": ("X::X() : a{1}, b{2} { }\nint n = {3};\nstruct Scales { };", "struct Scales { };",
                                         "type nibble::Scales"),
    "in a block of C": ("#ifdef A\nextern \"C\" {\n#endif\nstruct Scales { };\n}", "struct Scales { };", "type nibble::Scales"),
    "in both branches": ("#if A\nvoid f(int a) {\n#else\nvoid f() {\n#endif\n}\nstruct Scales { };", "struct Scales { };",
                         "type nibble::Scales"),
}


@pytest.mark.parametrize("name", DEFINED_TWICE)
def test_a_name_that_two_files_define_is_caught(name):
    first, second, expected = DEFINED_TWICE[name]
    found = clashes(in_namespace(first), in_namespace(second))
    assert len(found) == 1 and f"{expected} is defined in src/base/a.h:" in found[0], found


def test_both_places_are_named():
    first = in_namespace("struct Row { int struct_of; };", "", "struct Scales;", "struct Scales { };", name="nibble::ops")
    second = "namespace nibble {\ninline namespace ops {\n// struct Row\n\nclass Scales {};\n}\n}\n"
    found = clashes(first, second)
    assert len(found) == 1
    assert found[0].startswith("src/text/b.cpp:5: type nibble::ops::Scales is defined in src/base/a.h:6 as well; the linker keeps one")


DEFINED_ONCE = {
    "a declaration": ("struct Scales;\nenum class Kind : int;\ntemplate <class T> struct Box;\ninline int f(int);",
                      "struct Scales { };\nenum class Kind : int { one };\ntemplate <class T> struct Box { };\ninline int f(int) { return 0; }"),
    "an anonymous namespace": ("struct Scales { };", "namespace {\nstruct Scales { };\ninline int f() { return 0; }\n}"),
    "one in an anonymous one": ("struct Scales { };", "namespace {\nnamespace inner { struct A { }; }\nstruct Scales { };\n}"),
    "other namespaces": ("struct Scales { };", "namespace inner {\nstruct Scales { };\n}"),
    "nested types of two classes": ("struct A { struct Slot { }; };", "struct Slot { };\nstruct B { struct Slot { }; };\nstruct C::Slot { };"),
    "types of functions": ("inline void f() { struct Scales { }; }", "struct Scales { };"),
    "two specialisations": ("template <> struct DTypeOf<Bf16> { };", "template <> struct DTypeOf<E4M3> { };"),
    "a template and its specialisation": ("template <class T> struct DTypeOf { };", "template <> struct DTypeOf<E4M3> { };"),
    "specialisations that demand other things": ("template <class T> requires A<T> struct Box<T> { };",
                                                 "template <class T> requires B<T> struct Box<T> { };"),
    "overloads": ("inline int f(int a) { return a; }", "inline int f(float a) { return 0; }\ninline int f(int* a) { return 0; }"),
    "templates with other results": ("template <class T> int f(const T& a) { return 0; }", "template <class T> float f(const T& a) { return 0; }"),
    "templates that demand other things": ("template <class T> requires A<T> int f(T a) { return 0; }",
                                           "template <class T>\n  requires requires(T t) { t.f(); }\nint f(T a) { return 0; }"),
    "functions that the linker compares": ("int f() { return 0; }", "int f() { return 1; }"),
    "static functions": ("static inline int f() { return 0; }", "static inline int f() { return 1; }"),
    "constants of a file": ("constexpr int most = 1;\nconst int least = 2;", "constexpr int most = 3;\nconst int least = 4;"),
    "aliases": ("template <class T> using Box = A<T>;\nusing Row = int;", "template <class T> using Box = B<T>;\nusing Row = float;"),
    "returned types": ("struct Row f() { return {}; }", "struct Row { };\nenum Kind g() { return one; }"),
    "comments and literals": ('// struct Row { };\nconst char* a = "struct Row { };";', "struct Row { };"),
    "macros": ("#define ROW \\\n  struct Row { \\\n  };", "struct Row { };"),
}


@pytest.mark.parametrize("name", DEFINED_ONCE)
def test_definitions_of_two_things_pass(name):
    first, second = DEFINED_ONCE[name]
    assert clashes(in_namespace(first), in_namespace(second)) == []


def test_branches_of_one_file_may_define_a_name_each():
    assert clashes(in_namespace("#ifdef A\nstruct Row { };\n#else\nstruct Row { int a; };\n#endif")) == []


@pytest.mark.parametrize("path", ["src/ops/cuda/emulation/include/ops/ptx/grid.cuh", "src/formats/lanes.inc"])
def test_what_stands_in_for_a_file_or_is_part_of_one_defines_nothing_of_its_own(path):
    text = in_namespace("struct Row { };", "inline int f() { return 0; }")
    assert clashes(text, text, paths=("src/ops/ptx/grid.cuh", path)) == []
    assert len(clashes(text, text, paths=("src/ops/ptx/grid.cuh", "src/ops/cuda/emulation/grid.h"))) == 2


def test_a_name_that_two_files_define_fails_the_command(tmp_path):
    for file, kind in (("src/base/a.h", "struct"), ("app/b_test.cpp", "class")):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(f"namespace nibble {{\n{kind} Row {{}};\n}}\n")
    done = subprocess.run([sys.executable, ROOT / "tools/layers.py", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.startswith("app/b_test.cpp:2: type nibble::Row is defined in src/base/a.h:2 as well")


def test_this_tree_passes():
    assert layers.check_tree(ROOT) == []


def test_every_room_of_the_tree_has_arrows_and_no_arrow_goes_round():
    for room in layers.ARROWS:
        assert all(room not in layers.REACHES[below] for below in layers.ARROWS[room]), room
    for folder in (ROOT / "src").iterdir():
        assert folder.name in layers.ARROWS
