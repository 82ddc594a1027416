// The kernels a plan may choose, as facts: what each is for and what it needs. A kernel that is only declared
// is not `built`: it may be planned for a declared machine, and is never run.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "plan/machine.h"
#include "plan/model_traits.h"

namespace nibble {

enum class DeviceKind : std::uint8_t { cpu, cuda };
std::string_view device_name(DeviceKind device);

// Where expert weights lie in memory.
enum class WeightLayout : std::uint8_t {
  checkpoint,     // as the file has them, rows gate and up alternating
  sm90_granules,  // ours for Hopper in 4 bits, one for few and for many tokens (ops/moe/cuda/granules.h)
  sm90_blocks,    // ours in 8 and 16 bits (ops/linear/cuda/block_matrices.h)
};
// How tokens reach the ranks that hold their experts.
enum class DispatchFormat : std::uint8_t {
  in_place,    // every rank has every token
  contiguous,  // sorted by expert, counts on the device
  masked,      // [local experts, most tokens, hidden] and counts
};
// How results come back.
enum class CombineFormat : std::uint8_t {
  top_k_order,  // summed where they are, in the order of the token's top-k
};
std::string_view weight_layout_name(WeightLayout layout);
std::string_view dispatch_format_name(DispatchFormat format);
std::string_view combine_format_name(CombineFormat format);

// The one typed choice of (expert compute, token exchange).
struct ExpertPath {
  std::string_view kernel;
  std::string_view exchange;
  DispatchFormat dispatch = DispatchFormat::in_place;
  WeightLayout layout = WeightLayout::checkpoint;
  CombineFormat combine = CombineFormat::top_k_order;
  bool operator==(const ExpertPath&) const = default;
};

struct ExpertKernel;
struct Exchange;
// Whether this program runs the kernel with tokens that come by the exchange.
bool is_built(const ExpertKernel& kernel, const Exchange& exchange);

// Whether this program has device code, of whatever kernels are built.
bool has_device_code();

struct KernelFacts {
  std::string_view name;
  DeviceKind device = DeviceKind::cpu;
  std::span<const std::string_view> features;  // of the CPU
  int compute_capability = 0;                  // of the GPU, this one exactly
  bool built = false;                          // into this program
};

struct ExpertKernel {
  KernelFacts facts;
  StoredFormat format = StoredFormat::mxfp4;
  WeightLayout layout = WeightLayout::checkpoint;
  bool exchanges = false;        // declared to take contiguous and masked tokens, not only tokens in place
  bool exchanges_built = false;  // and does so in this program
};

struct AttentionKernel {
  KernelFacts facts;
  AttentionKind kind = AttentionKind::grouped;
  bool takes_both = false;           // kinds
  std::int64_t split = 0;            // positions
  std::string_view longer_splits{};  // where they are longer, in words; empty: nowhere
  int page_size = 16;                // of keys and values; a divisor of the split

  bool takes(AttentionKind asked) const { return takes_both || kind == asked; }
};

struct Exchange {
  std::string_view name;
  DispatchFormat dispatch;
  CombineFormat combine;
  bool built = false;  // into this program
};

std::span<const ExpertKernel> expert_kernels();      // in order of preference on their device
std::span<const AttentionKernel> attention_table();  // likewise
std::span<const Exchange> exchanges();               // likewise
const ExpertKernel* find_expert_kernel(std::string_view name);
const AttentionKernel* find_attention(std::string_view name);
const Exchange* find_exchange(std::string_view name);

// A name that users bring from another engine.
struct ForeignName {
  std::string_view name;
  std::string_view from;     // whose it is
  std::string_view ours;     // the same numbers and the same layout; empty: refused
  std::string_view because;  // why it is refused, or why it may be taken for ours
  std::string_view instead;  // what to give; may be empty
};
std::span<const ForeignName> foreign_runners();
std::span<const ForeignName> foreign_exchanges();
std::span<const ForeignName> foreign_attention();
const ForeignName* find_foreign(std::span<const ForeignName> list, std::string_view name);

// What of `features` the CPU lacks, as a list; empty: nothing.
std::string missing_features(const KernelFacts& kernel, const CpuFacts& cpu);
bool needed_by_some_kernel(std::string_view feature);

}  // namespace nibble
