// Which kernels of an op run: those asked for by name, or the first of its list that this CPU supports. The
// name a user gives is the list's with "cpu_" before it. All of a list give the same bits.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "ops/op_context.h"

namespace nibble {

template <class Kernels>
struct KernelChoice {
  const Kernels* kernels = nullptr;
  std::string name;  // as a user gives it
  std::string why;
};

// `asked` is a name or "auto". A name that cannot be honoured is refused with those that this machine runs.
Result<KernelChoice<DotKernels>> choose_dot_kernels(std::string_view asked);
Result<KernelChoice<AttentionKernels>> choose_attention_kernels(std::string_view asked);

}  // namespace nibble
