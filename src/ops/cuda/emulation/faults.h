// Failures of the emulated GPU, for tests of what is done about them. A test writes one line to the file that
// EMULATED_GPU_FAULT names,
//   launch N, copy N   what the Nth launch (copy) from now on queues goes wrong: that call succeeds, its work
//                      is not done, and every later call says that the GPU is lost
//   wait N             the Nth wait from now on says so, and every later call
//   hang N             the Nth wait from now on never ends
//   graph N            the Nth graph that is launched from now on lacks its last kernel; the GPU works on
//   allocation N       there is no memory for the Nth allocation from now on; the GPU works on
// and the process that reads it first deletes it: one that is started afterwards has a GPU that works. An
// order is not read before the one ahead of it has been followed.
#pragma once

#include <cstdint>

namespace nibble::emulation {

enum class Call : std::uint8_t { launch, graph, copy, wait, allocation, other };
enum class Outcome : std::uint8_t {
  works,
  dropped,  // it is not done, and only later calls say so
  refused,
  lost,
  hangs,
  cut_short,  // its last part is not done
};

// What becomes of a call to the runtime.
Outcome outcome_of(Call call);

// Whether somebody may order faults.
bool takes_orders();

}  // namespace nibble::emulation
