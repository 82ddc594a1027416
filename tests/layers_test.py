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


def test_this_tree_passes():
    assert layers.check_tree(ROOT) == []


def test_every_room_of_the_tree_has_arrows_and_no_arrow_goes_round():
    for room in layers.ARROWS:
        assert all(room not in layers.REACHES[below] for below in layers.ARROWS[room]), room
    for folder in (ROOT / "src").iterdir():
        assert folder.name in layers.ARROWS
