#include "runtime/kernel_choice.h"

#include <span>

#include "base/quote.h"
#include "ops/attention/attention_kernels.h"

namespace nibble {
namespace {

std::string user_name(std::string_view name) { return "cpu_" + std::string(name); }

void append_name(std::string& list, std::string_view name) {
  list += (list.empty() ? "" : ", ") + user_name(name);
}

template <class Kernels>
Result<KernelChoice<Kernels>> choose(std::span<const Kernels> list, std::string_view asked) {
  std::string runs, lacks;
  for (const Kernels& each : list) append_name(each.supported() ? runs : lacks, each.name);
  for (const Kernels& each : list) {
    const std::string name = user_name(each.name);
    if (asked != "auto" && asked != name) continue;
    if (each.supported()) {
      return KernelChoice<Kernels>{
          .kernels = &each,
          .name = name,
          .why = asked != "auto" ? "asked for"
                 : lacks.empty() ? "the first in order of preference"
                                 : "the first in order of preference that this CPU runs; it lacks " + lacks};
    }
    if (asked == name)
      return invalid_argument("this CPU lacks what " + name + " needs; give auto or one of " + runs);
  }
  return invalid_argument(quote(asked) + " is not built in; give auto or one of " + runs);
}

}  // namespace

Result<KernelChoice<DotKernels>> choose_dot_kernels(std::string_view asked) {
  return choose(dot_kernels(), asked);
}

Result<KernelChoice<AttentionKernels>> choose_attention_kernels(std::string_view asked) {
  return choose(attention_kernels(), asked);
}

}  // namespace nibble
