// Looking at a shared library before anything of it is used. It is opened and asked in a child process, so
// that one that crashes or hangs costs this process nothing but its time.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/machine.h"

namespace nibble {

// How a library tells its version.
enum class VersionCall : std::uint8_t {
  thousands,      // int f(int* version): 13020 is 13.2 (CUDA)
  ten_thousands,  // int f(int* version): 22809 is 2.28.9 (NCCL)
  returned,       // size_t f(): 130002 is 13.0.2 (cuBLASLt)
  pair,           // int f(int* major, int* minor) (MPI)
};

struct LibrarySpec {
  std::string name;                // a gate's
  std::vector<std::string> files;  // the first that opens is taken
  std::string version_symbol;
  VersionCall version_call = VersionCall::thousands;
  std::vector<std::string> symbols;  // that must be there as well
  std::string size_symbol;           // size_t f(): bytes of a struct that is passed by pointer; empty: none
  std::size_t size = 0;              // that this program passes
  std::string probe_symbol;          // int f(), 0 for success: a call that shows that it works; empty: none
};

// The libraries of the gates.
std::span<const LibrarySpec> library_specs();

// How long a library may take. Work counts as the child's own time on a CPU, which other work on the machine
// does not lengthen; a library that waits for something does not use that up, and is given up by the clock.
struct ProbeLimits {
  std::chrono::milliseconds cpu = std::chrono::seconds(1);
  std::chrono::milliseconds wall = std::chrono::seconds(10);
};

// A version, or a problem, or neither where no file opens because none is there.
FoundLibrary probe_library(const LibrarySpec& spec, const ProbeLimits& limits = {});

// All of library_specs().
std::vector<FoundLibrary> probe_libraries();

}  // namespace nibble
