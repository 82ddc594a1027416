#include "plan/kernel_table.h"

#include <algorithm>

#include "ops/attention/attention.h"

namespace nibble {
namespace {

constexpr std::string_view avx2[] = {"avx2", "fma"};
constexpr std::string_view avx2_f16c[] = {"avx2", "f16c", "fma"};
constexpr std::string_view avx512[] = {"avx512bw", "avx512dq", "avx512f", "avx512vl"};
constexpr std::string_view avx512_fma[] = {"avx2", "avx512bw", "avx512dq", "avx512f", "avx512vl", "fma"};
constexpr std::string_view avx512_bf16[] = {"avx512_bf16", "avx512_vnni", "avx512bw", "avx512dq",
                                            "avx512f",     "avx512vbmi",  "avx512vl"};
constexpr std::string_view avx512_vnni[] = {"avx512_vnni", "avx512bw",   "avx512dq",
                                            "avx512f",     "avx512vbmi", "avx512vl"};
constexpr std::string_view amx[] = {"amx_bf16", "amx_tile", "avx512_bf16", "avx512_vnni", "avx512bw",
                                    "avx512dq", "avx512f",  "avx512vbmi",  "avx512vl"};

constexpr KernelFacts on_cpu(std::string_view name, std::span<const std::string_view> features) {
  return {.name = name, .device = DeviceKind::cpu, .features = features, .built = true};
}
#ifdef NIBBLE_DEVICE_CODE
constexpr bool device_code = true;
#else
constexpr bool device_code = false;
#endif

constexpr KernelFacts on_sm90(std::string_view name, bool built = false) {
  return {.name = name, .device = DeviceKind::cuda, .features = {}, .compute_capability = 90, .built = built};
}

constexpr KernelFacts on_sm100(std::string_view name) {
  return {
      .name = name, .device = DeviceKind::cuda, .features = {}, .compute_capability = 100, .built = false};
}

// The order of the CPU's is that of ops/linear/dot_kernels.cpp.
constexpr ExpertKernel experts[] = {
    {.facts = on_sm90("sm90_mxfp4", device_code),
     .format = StoredFormat::mxfp4,
     .layout = WeightLayout::sm90_granules,
     .exchanges = true,
     .exchanges_built = true},
    {.facts = on_sm90("sm90_nvfp4", device_code),
     .format = StoredFormat::nvfp4,
     .layout = WeightLayout::sm90_granules,
     .exchanges = true,
     .exchanges_built = true},
    {.facts = on_sm90("sm90_int4", device_code),
     .format = StoredFormat::int4,
     .layout = WeightLayout::sm90_granules,
     .exchanges = true,
     .exchanges_built = true},
    {.facts = on_sm90("sm90_fp8_block", device_code),
     .format = StoredFormat::fp8_block,
     .layout = WeightLayout::sm90_blocks,
     .exchanges = true,
     .exchanges_built = true},
    {.facts = on_sm90("sm90_bf16", device_code),
     .format = StoredFormat::bf16,
     .layout = WeightLayout::sm90_blocks,
     .exchanges = true,
     .exchanges_built = true},
    {.facts = on_sm100("sm100_mxfp4"), .format = StoredFormat::mxfp4, .exchanges = true},
    {.facts = on_sm100("sm100_nvfp4"), .format = StoredFormat::nvfp4, .exchanges = true},
    {.facts = on_sm100("sm100_fp8_block"), .format = StoredFormat::fp8_block, .exchanges = true},
    {.facts = on_sm100("sm100_bf16"), .format = StoredFormat::bf16, .exchanges = true},
    {.facts = on_cpu("cpu_amx", amx), .exchanges = true, .exchanges_built = true},
    {.facts = on_cpu("cpu_avx512_bf16", avx512_bf16), .exchanges = true, .exchanges_built = true},
    {.facts = on_cpu("cpu_avx512_vnni", avx512_vnni), .exchanges = true, .exchanges_built = true},
    {.facts = on_cpu("cpu_avx512", avx512), .exchanges = true, .exchanges_built = true},
    {.facts = on_cpu("cpu_avx2", avx2), .exchanges = true, .exchanges_built = true},
    {.facts = on_cpu("cpu_scalar", {}), .exchanges = true, .exchanges_built = true},
};

constexpr AttentionKernel attention[] = {
    {.facts = on_sm90("sm90_attention", device_code),
     .kind = AttentionKind::grouped,
     .split = 128,
     .longer_splits = "512 behind the first 2,048",
     .page_size = 64},
    {.facts = on_sm90("sm90_mla", device_code),
     .kind = AttentionKind::latent,
     .split = 256,
     .longer_splits = "512 behind the first 2,048",
     .page_size = 64},
    {.facts = on_sm100("sm100_attention"), .kind = AttentionKind::grouped, .split = 512, .page_size = 64},
    {.facts = on_sm100("sm100_mla"), .kind = AttentionKind::latent, .split = 512, .page_size = 64},
    {.facts = on_cpu("cpu_avx512", avx512_fma), .takes_both = true, .split = kv_split},
    {.facts = on_cpu("cpu_avx2", avx2_f16c), .takes_both = true, .split = kv_split},
    {.facts = on_cpu("cpu_scalar", {}), .takes_both = true, .split = kv_split},
};

constexpr Exchange exchange_list[] = {
    {"none", DispatchFormat::in_place, CombineFormat::top_k_order, true},
    {"normal", DispatchFormat::contiguous, CombineFormat::top_k_order, true},
    {"low_latency", DispatchFormat::masked, CombineFormat::top_k_order, true},
};

constexpr std::string_view own_layout = "its weights are reordered, [up; gate] interleaved by 16 rows";
constexpr ForeignName runners[] = {
    {"triton_kernels", "vLLM, SGLang", "sm90_mxfp4",
     "bfloat16 inputs, MXFP4 weights as stored and float32 sums, both", ""},
    {"triton_kernel", "SGLang", "sm90_mxfp4",
     "bfloat16 inputs, MXFP4 weights as stored and float32 sums, both", ""},
    {"triton", "vLLM, SGLang", "sm90_bf16", "bfloat16 inputs and weights as stored and float32 sums, both",
     ""},
    {"deep_gemm", "vLLM, SGLang", "", "it rounds the inputs to FP8 by 128", "sm90_fp8_block"},
    {"flashinfer_cutlass", "vLLM, SGLang", "", own_layout, "sm90_mxfp4"},
    {"flashinfer_mxfp4", "SGLang", "", own_layout, "sm90_mxfp4"},
    {"flashinfer_trtllm", "vLLM, SGLang", "", "it is for SM100 and rounds the inputs to MXFP8", "auto"},
    {"flashinfer_trtllm_routed", "SGLang", "", "it is for SM100 and rounds the inputs to MXFP8", "auto"},
    {"flashinfer_cutedsl", "SGLang", "",
     "one name for two weight layouts, [Gate, Up] masked and [Up, Gate] interleaved", "sm90_nvfp4"},
    {"marlin", "vLLM, SGLang", "", "it adds partial sums in another precision and order", "auto"},
    {"cutlass", "vLLM, SGLang", "", "it rounds the inputs to FP8 a tensor", "sm90_fp8_block"},
    {"humming", "vLLM, SGLang", "", "it folds scales into FP8 weights, an error of some percent",
     "sm90_mxfp4"},
    {"megamoe", "SGLang", "", "it is for SM100", "auto"},
    {"aiter", "vLLM, SGLang", "", "it is for AMD GPUs", "auto"},
};
constexpr ForeignName exchange_names[] = {
    {"deepep", "SGLang", "normal",
     "tokens contiguous, once a rank, both; results are added in the order of the top-k here", ""},
    {"deepep_high_throughput", "vLLM", "normal",
     "tokens contiguous, once a rank, both; results are added in the order of the top-k here", ""},
    {"deepep_low_latency", "vLLM", "low_latency",
     "masked tokens of a fixed number, both; results are added in the order of the top-k here", ""},
    {"flashinfer", "SGLang", "", "its dispatch quantizes tokens to FP4", "normal"},
    {"mooncake", "SGLang", "", "it is for several hosts with RDMA", "low_latency"},
    {"deepep_v2", "SGLang", "", "it expands tokens on the host's order of arrival", "normal"},
    {"pplx", "vLLM, SGLang", "", "it is for several hosts with RDMA", "low_latency"},
    {"mori", "SGLang", "", "it is for AMD GPUs", "normal"},
    {"nixl", "SGLang", "", "it is for several hosts with RDMA", "low_latency"},
    {"naive", "vLLM", "", "it sends every token to every rank; here they are there already", "none"},
    {"allgather_reducescatter", "vLLM", "", "its sums depend on the size of the message", "none"},
};
constexpr ForeignName attention_names[] = {
    {"fa3", "SGLang", "", "its number of splits depends on the batch", "auto"},
    {"flashinfer", "vLLM, SGLang", "", "its splits depend on the batch", "auto"},
    {"triton", "SGLang", "", "its splits depend on the batch", "auto"},
    {"FLASH_ATTN", "vLLM", "", "its number of splits depends on the batch", "auto"},
    {"TRITON_ATTN", "vLLM", "", "its splits depend on the batch", "auto"},
};

template <class List>
const auto* find_in(const List& list, std::string_view name) {
  const auto found = std::find_if(std::begin(list), std::end(list),
                                  [&](const auto& each) { return each.facts.name == name; });
  return found == std::end(list) ? nullptr : &*found;
}

template <class List>
bool needed_in(const List& list, std::string_view feature) {
  return std::any_of(std::begin(list), std::end(list), [&](const auto& kernel) {
    return std::count(kernel.facts.features.begin(), kernel.facts.features.end(), feature) != 0;
  });
}

}  // namespace

std::string_view stored_format_name(StoredFormat format) {
  constexpr std::string_view names[] = {"bf16", "mxfp4", "nvfp4", "fp8_block", "fp8_row", "int4"};
  return names[static_cast<std::size_t>(format)];
}
std::string_view device_name(DeviceKind device) { return device == DeviceKind::cpu ? "cpu" : "cuda"; }
std::string_view weight_layout_name(WeightLayout layout) {
  constexpr std::string_view names[] = {"checkpoint", "sm90_granules", "sm90_blocks"};
  return names[static_cast<std::size_t>(layout)];
}
std::string_view dispatch_format_name(DispatchFormat format) {
  constexpr std::string_view names[] = {"in_place", "contiguous", "masked"};
  return names[static_cast<std::size_t>(format)];
}
std::string_view combine_format_name(CombineFormat format) {
  constexpr std::string_view names[] = {"top_k_order"};
  return names[static_cast<std::size_t>(format)];
}

bool is_built(const ExpertKernel& kernel, const Exchange& exchange) {
  const bool takes_tokens = exchange.dispatch == DispatchFormat::in_place || kernel.exchanges_built;
  return kernel.facts.built && exchange.built && takes_tokens;
}

bool has_device_code() { return device_code; }

std::span<const ExpertKernel> expert_kernels() { return experts; }
std::span<const AttentionKernel> attention_table() { return attention; }
std::span<const Exchange> exchanges() { return exchange_list; }
const ExpertKernel* find_expert_kernel(std::string_view name) { return find_in(experts, name); }
const AttentionKernel* find_attention(std::string_view name) { return find_in(attention, name); }
const Exchange* find_exchange(std::string_view name) {
  for (const Exchange& each : exchange_list) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

std::span<const ForeignName> foreign_runners() { return runners; }
std::span<const ForeignName> foreign_exchanges() { return exchange_names; }
std::span<const ForeignName> foreign_attention() { return attention_names; }
const ForeignName* find_foreign(std::span<const ForeignName> list, std::string_view name) {
  for (const ForeignName& each : list) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

std::string missing_features(const KernelFacts& kernel, const CpuFacts& cpu) {
  std::string missing;
  for (const std::string_view feature : kernel.features) {
    if (cpu.has(feature)) continue;
    missing += (missing.empty() ? "" : ", ") + std::string(feature);
  }
  return missing;
}

bool needed_by_some_kernel(std::string_view feature) {
  return needed_in(experts, feature) || needed_in(attention, feature);
}

}  // namespace nibble
