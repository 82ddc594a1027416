// What nibble doctor asks of a GPU: its link and memory, what its driver says of it, whether each family of
// kernels computes what it should, and whether kernels for few and for many rows give the same bits there.
// That rests on how the chip adds, and nothing else would notice a chip that adds otherwise.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "ops/attention/cuda/attention_cuda.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/waiting_grids.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "runtime/cuda/cuda_handles.h"
#include "runtime/cuda/gpu_check_util.h"
#include "runtime/gpu.h"
#include "runtime/gpu_health.h"
#include "tensor/device_buffer.h"
#include "tensor/pinned_buffer.h"

namespace nibble {
namespace {

constexpr const char* report_it = "give --device cpu, and report this";

// Rows in one call for many, and eight at a time in the kernel for few; both against double precision.
Result<std::string> check_linear() {
  constexpr int tokens = 96, rows = 192, cols = 512;
  Numbers numbers;
  const std::vector<Bf16> x = numbers.list(tokens * cols), w = numbers.list(rows * cols);
  const DenseShape shape{rows, cols};
  NIBBLE_ASSIGN(DeviceBuffer plain_x, on_device(x));
  NIBBLE_ASSIGN(DeviceBuffer plain_w, on_device(w));
  NIBBLE_ASSIGN(DeviceBuffer tiles, DeviceBuffer::allocate(shape.bytes()));
  NIBBLE_ASSIGN(DeviceBuffer packed, DeviceBuffer::allocate(shape.token_bytes(tokens)));
  NIBBLE_ASSIGN(LinearRoom room, linear_room(tokens));
  NIBBLE_ASSIGN(DeviceBuffer few, zeroed(tokens * rows * sizeof(float)));
  NIBBLE_ASSIGN(DeviceBuffer many, zeroed(tokens * rows * sizeof(float)));
  NIBBLE_RETURN_IF_ERROR(repack_dense_cuda(plain_w.as<Bf16>(), shape, tiles.as<std::uint8_t>(), nullptr));
  NIBBLE_RETURN_IF_ERROR(
      pack_tokens_cuda(plain_x.as<Bf16>(), tokens, cols, cols, packed.as<std::uint8_t>(), nullptr));
  LinearCudaArgs args{.x = {packed.as<std::uint8_t>(), tokens},
                      .weight = {tiles.as<std::uint8_t>(), shape},
                      .y = many.as<float>(),
                      .y_stride = rows,
                      .workspace = room.workspace(),
                      .path = LinearPath::many};
  NIBBLE_RETURN_IF_ERROR(linear_cuda(args, nullptr));
  args.path = LinearPath::few;
  for (int token = 0; token < tokens; token += token_group) {
    args.x = {packed.as<std::uint8_t>() + token_offset(shape.blocks(), token, 0), token_group};
    args.y = few.as<float>() + token * rows;
    NIBBLE_RETURN_IF_ERROR(linear_cuda(args, nullptr));
  }
  std::vector<float> found(tokens * rows);
  many.copy_to(std::span(found));
  std::vector<double> expected;
  std::vector<float> compared;
  for (std::size_t token = 0; token < tokens; token += 19) {
    for (std::size_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (std::size_t k = 0; k < cols; ++k)
        sum += double{x[token * cols + k].to_float()} * double{w[row * cols + k].to_float()};
      expected.push_back(sum);
      compared.push_back(found[token * rows + row]);
    }
  }
  if (!is_near(expected, compared, 1e-5)) return std::string("far from double precision");
  return bytes_of(few) == bytes_of(many) ? std::string()
                                         : std::string("other bits for few rows than for many");
}

// What one query of 64 dimensions sees of positions [0, past) of a head, in double precision.
template <class Kv>
std::vector<double> attended(const Bf16* query, const typename Kv::Element* keys,
                             const typename Kv::Element* values, int past, double scale) {
  std::vector<double> out(kv_head_dim);
  double weights = 0;
  for (int position = 0; position < past; ++position) {
    const auto *const key = keys + position / kv_chunk_slots * kv_chunk_elements, *const value =
                                                                                      values +
                                                                                      position /
                                                                                          kv_chunk_slots *
                                                                                          kv_chunk_elements;
    const int slot = position % kv_chunk_slots;
    double score = 0;
    for (int d = 0; d < kv_head_dim; ++d)
      score += double{query[d].to_float()} * double{key[Kv::key_at(slot, d)].to_float()};
    const double weight = std::exp(score * scale);
    weights += weight;
    for (int d = 0; d < kv_head_dim; ++d)
      out[static_cast<std::size_t>(d)] += weight * double{value[Kv::value_at(slot, d)].to_float()};
  }
  for (double& each : out) each /= weights;
  return out;
}

template <class Kv>
Result<std::string> check_attention() {
  constexpr int rows = 96, first = 400, heads = 16, kv_heads = 2, page_size = 64, slots = 512;
  constexpr float scale = 0.125f;
  Numbers numbers;
  const auto cache = [&] {
    std::vector<typename Kv::Element> elements;
    for (const Bf16 value : numbers.list(kv_heads * slots * kv_head_dim))
      elements.push_back(Kv::Element::from_float(value.to_float()));
    return elements;
  };
  const std::vector<Bf16> queries = numbers.list(rows * heads * kv_head_dim, 4.0f);
  NIBBLE_ASSIGN(DeviceBuffer q, on_device(queries));
  const auto stored_keys = cache(), stored_values = cache();
  NIBBLE_ASSIGN(DeviceBuffer keys, on_device(stored_keys));
  NIBBLE_ASSIGN(DeviceBuffer values, on_device(stored_values));
  std::vector<std::int32_t> pages(slots / page_size);
  std::iota(pages.begin(), pages.end(), 0);
  NIBBLE_ASSIGN(DeviceBuffer table, on_device(pages));
  const DenseShape of_heads{0, heads * kv_head_dim};
  const int later = (slots - 1) / attention_cluster_positions(kv_head_dim);
  const bool is_short = later <= attention_later_clusters(kv_heads, heads / kv_heads, processors_of_device());
  const auto attend = [&](const std::vector<SequenceCuda>& cuts, AttentionRows how,
                          int window) -> Result<std::vector<std::byte>> {
    const int splits = static_cast<int>(cuts.size()) * attention_splits(slots);
    NIBBLE_ASSIGN(DeviceBuffer sequences, on_device(cuts));
    NIBBLE_ASSIGN(DeviceBuffer out, zeroed(of_heads.token_bytes(rows)));
    NIBBLE_ASSIGN(DeviceBuffer partials,
                  DeviceBuffer::allocate(attention_partials(splits, kv_heads) * sizeof(float)));
    partials.fill(0xff);
    NIBBLE_RETURN_IF_ERROR(attention_cuda({.q = q.as<Bf16>(),
                                           .heads = heads,
                                           .sequences = sequences.as<SequenceCuda>(),
                                           .sequence_count = static_cast<int>(cuts.size()),
                                           .page_table = table.as<std::int32_t>(),
                                           .page_size = page_size,
                                           .cache = {keys.data(), values.data(), kv_heads, slots, Kv::dtype},
                                           .window = window,
                                           .scale = scale,
                                           .out = out.as<std::uint8_t>(),
                                           .rows = how,
                                           .later_clusters = is_short ? later : attention_any_context,
                                           .max_splits = splits,
                                           .workspace = {partials.as<float>()}},
                                          nullptr));
    cuda_check(cudaDeviceSynchronize());
    return bytes_of(out);
  };
  const auto row_of = [&](const std::vector<std::byte>& outputs, int row) {
    std::vector<std::byte> bytes;
    for (int column = 0; column < heads * kv_head_dim; column += 8) {  // which lie together
      const auto at =
          outputs.begin() + static_cast<std::ptrdiff_t>(token_offset(of_heads.blocks(), row, column));
      bytes.insert(bytes.end(), at, at + 16);
    }
    return bytes;
  };
  std::vector<SequenceCuda> one_by_one;
  for (int row = 0; row < rows; ++row) one_by_one.push_back({row, 1, first + row, 0});
  std::vector<std::byte> outputs;
  for (const int window : {128, 0}) {
    NIBBLE_ASSIGN(const std::vector<std::byte> few, attend(one_by_one, AttentionRows::one, window));
    NIBBLE_ASSIGN(const std::vector<std::byte> alone,
                  attend({one_by_one.back()}, AttentionRows::one, window));
    NIBBLE_ASSIGN(outputs, attend({{0, rows, first, 0}}, AttentionRows::all_as_many, window));
    if (few != outputs) return std::string("other bits in a decode than in a prefill");
    if (row_of(alone, rows - 1) != row_of(outputs, rows - 1))
      return std::string("other bits alone than among others");
  }
  std::vector<double> expected;
  std::vector<float> found;
  for (const int row : {0, 47, 95}) {
    for (const int head : {0, 5, 15}) {
      const std::size_t of_head = static_cast<std::size_t>(head / (heads / kv_heads)) * slots * kv_head_dim;
      const std::vector<double> exact =
          attended<Kv>(&queries[static_cast<std::size_t>((row * heads + head) * kv_head_dim)],
                       &stored_keys[of_head], &stored_values[of_head], first + row + 1, double{scale});
      expected.insert(expected.end(), exact.begin(), exact.end());
      for (int d = 0; d < kv_head_dim; ++d) {
        Bf16 value;
        std::memcpy(&value, &outputs[token_offset(of_heads.blocks(), row, head * kv_head_dim + d)],
                    sizeof value);
        found.push_back(value.to_float());
      }
    }
  }
  // Weights and outputs are rounded to bfloat16.
  return is_near(expected, found, 4e-3) ? std::string() : std::string("far from double precision");
}

double gigabytes_a_second(std::size_t bytes, const std::function<void()>& copy) {
  copy();
  cuda_check(cudaDeviceSynchronize());
  constexpr int times = 4;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) copy();
  cuda_check(cudaDeviceSynchronize());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return times * static_cast<double>(bytes) / took.count() / 1e9;
}

Result<std::string> measure_copies() {
  constexpr std::size_t bytes = std::size_t{256} << 20;
  NIBBLE_ASSIGN(PinnedBuffer host, PinnedBuffer::allocate(bytes));
  NIBBLE_ASSIGN(DeviceBuffer device, DeviceBuffer::allocate(bytes));
  NIBBLE_ASSIGN(DeviceBuffer other, DeviceBuffer::allocate(bytes));
  const auto copied = [&](void* to, const void* from, cudaMemcpyKind kind) {
    return gigabytes_a_second(bytes, [&] { cuda_check(cudaMemcpyAsync(to, from, bytes, kind, nullptr)); });
  };
  const double in = copied(device.data(), host.data(), cudaMemcpyHostToDevice);
  const double out = copied(host.data(), device.data(), cudaMemcpyDeviceToHost);
  const double inside = 2 * copied(other.data(), device.data(), cudaMemcpyDeviceToDevice);
  const auto whole = [](double rate) { return std::to_string(std::lround(rate)); };
  return "GB/s to it " + whole(in) + ", from it " + whole(out) + ", inside " + whole(inside) +
         " read and written";
}

#ifdef NIBBLE_GPU_EMULATION
constexpr int peer_rounds = 1;
#else
constexpr int peer_rounds = 20;
#endif

std::vector<GpuCheck> health_of(const cudaDeviceProp& properties) {
  char address[32] = "";
  std::snprintf(address, sizeof address, "%08x:%02x:%02x.0", static_cast<unsigned>(properties.pciDomainID),
                static_cast<unsigned>(properties.pciBusID), static_cast<unsigned>(properties.pciDeviceID));
  const Result<GpuHealth> health = read_gpu_health(address);
  if (health.ok()) return judge(*health);
  return {GpuCheck{.name = "gpu's health"}.skip(health.status().message())};
}

}  // namespace

std::vector<GpuCheck> check_gpu() {
  std::vector<GpuCheck> checks;
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, 0));
  checks.push_back({.name = "gpu",
                    .found = std::string(properties.name) + ", SM" + std::to_string(properties.major) +
                             std::to_string(properties.minor) + ", " +
                             std::to_string(properties.multiProcessorCount) + " multiprocessors, " +
                             std::to_string(properties.totalGlobalMem >> 20) + " MiB"});
  const WaitingGrids grids = waiting_grids();
  const Status places = check_places(grids);
  checks.push_back({.name = "gpu's places",
                    .verdict = places.ok() ? GpuVerdict::ok : GpuVerdict::fail,
                    .found = places.ok() ? "for all blocks of the " + std::to_string(grids.size()) +
                                               " kernels whose blocks wait for each other"
                                         : places.message(),
                    .advice = places.ok() ? "" : report_it});
  const Result<std::string> copies = measure_copies();
  checks.push_back({.name = "gpu's copies",
                    .verdict = copies.ok() ? GpuVerdict::ok : GpuVerdict::fail,
                    .found = copies.ok() ? *copies : copies.status().message(),
                    .advice = copies.ok() ? "" : report_it});
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 1) {
    const struct {
      const char* name;
      Result<std::string> (*check)(int gpus, int rounds);
    } of_several[] = {
        {"gpus together", check_peers}, {"token exchange", check_exchange}, {"NCCL", check_merges}};
    for (const auto& [name, check] : of_several) {
      const Result<std::string> found = check(gpus, peer_rounds);
      checks.push_back(
          {.name = name,
           .verdict = found.ok() ? GpuVerdict::ok : GpuVerdict::fail,
           .found = found.ok() ? *found : found.status().message(),
           .advice =
               found.ok() ? "" : "--tp and --dp run on GPUs that reach each other: nvidia-smi topo -m"});
    }
  }
  // Right behind the copies, with which the link and the memory have come up to speed.
  for (GpuCheck& check : health_of(properties)) checks.push_back(std::move(check));
  const struct {
    const char* name;
    Result<std::string> (*check)();
    const char* what;
  } kernels[] = {
      {"sm90_bf16_linear", check_linear,
       "products with bf16 weights: near double precision, the bits of few rows and of many"},
      {"sm90_bf16_linear, q, k and v", check_qkv,
       "queries, keys and values turned and put in their places: near double precision, the bits of few rows "
       "and of many"},
      {"sm90_mxfp4", check_mxfp4_experts,
       "experts with mxfp4 weights: near double precision, the bits of few rows and of many"},
      {"sm90_nvfp4", check_nvfp4_experts,
       "experts with nvfp4 weights: near double precision, the bits of few rows and of many"},
      {"sm90_int4", check_int4_experts,
       "experts with int4 weights: near double precision, the bits of few rows and of many"},
      {"sm90_blocks, fp8", check_fp8_linear,
       "products with fp8 weights, scales of blocks or of rows: near double precision, the bits of few rows "
       "and of many"},
      {"sm90_blocks, rounded to fp8", check_rounded_linear,
       "products of rows rounded to fp8: near double precision, the bits of few rows and of many"},
      {"sm90_blocks, nvfp4", check_nvfp4_linear,
       "products with nvfp4 weights in blocks: near double precision, the bits of few rows and of many"},
      {"sm90_blocks, experts in fp8", check_fp8_experts,
       "experts with fp8 weights, scales of blocks or of rows: near double precision, the bits of few rows "
       "and of many"},
      {"sm90_blocks, experts in bf16", check_bf16_experts,
       "experts with bf16 weights: near double precision, the bits of few rows and of many"},
      {"sm90_attention", check_attention<KvBf16>,
       "attention: near double precision, the bits of decode and prefill, alone and in windows"},
      {"sm90_attention, fp8", check_attention<KvE4m3>,
       "attention to fp8 keys and values: near double precision, the bits of decode and prefill, alone and "
       "in windows"},
      {"latent_attention", check_latent_attention,
       "attention to latents: near double precision, the bits of decode and prefill, and alone"},
      {"gated_delta", check_gated_delta,
       "the gated delta rule: near the CPU's, the bits of rows one by one and of all at once"},
      {"add_rms_norm", check_norm, "norms: near the CPU's, and its residual"},
      {"route_top_k", check_router, "the choice of experts: the CPU's"},
      {"norm_router", check_norm_router, "norm, router and choice in one: the bits of the three one by one"},
      {"norm_linear", check_norm_linear, "norm and product in one: the bits of the two one by one"},
      {"embedding", check_embedding, "embeddings: the CPU's bits"},
      {"sample", check_sampling, "sampling and lists of the likeliest: the CPU's tokens"}};
  for (const auto& kernel : kernels) {
    const Result<std::string> found = kernel.check();
    const bool equal = found.ok() && found->empty();
    checks.push_back({.name = kernel.name,
                      .verdict = equal ? GpuVerdict::ok : GpuVerdict::fail,
                      .found = equal        ? kernel.what
                               : found.ok() ? *found
                                            : found.status().message(),
                      .advice = equal ? "" : report_it});
  }
  return checks;
}

}  // namespace nibble
