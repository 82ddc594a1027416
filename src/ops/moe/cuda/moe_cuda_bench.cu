// How fast the expert layer of gpt-oss, or of another shape, runs: a CUDA graph of 36 layers with weights of
// their own, so that the second-level cache holds none of the next one's; random codes, random inputs, and
// experts chosen by random logits. Once as it is given its experts, and once with the router's top-k before
// each layer.
//
//   moe_cuda_bench [--format mxfp4|nvfp4|int4] [--experts 128,32] [--tokens 1,2,4,8,...] [--kernels few|many]
//                  [--hidden 2880] [--intermediate 2880] [--top-k 4] [--unit gpt-oss|silu] [--blocks N]
//                  [--json FILE]
//
// --unit silu: without biases. --blocks: multiprocessors to run on, each then with a larger share of the
// memory's speed. Prints a line for each: microseconds a layer (median of the replays), distinct experts,
// share of what a kernel that only reads gets from this GPU.
#include <set>

#include "ops/cuda/read_peak.cuh"
#include "ops/moe/cuda/moe_cuda.h"
#include "ops/router/cuda/router_cuda.h"

namespace nibble {
namespace {

using bench::filled;
using bench::normal;
using bench::small;
using bench::zeroed;

constexpr int layers = 36;

struct LayerShape {
  int hidden = 2880, intermediate = 2880, top_k = 4;
  bool biased = true;
  GatedUnit unit = gpt_oss_unit(7.0f);
};

int replays_of(int tokens) { return tokens > 512 ? 5 : 25; }

// A word of scales as they are stored.
template <class Layout>
__device__ std::uint32_t stored_scales(std::uint32_t bits) {
  if constexpr (std::is_same_v<Layout, Mxfp4GranuleLayout>) {  // 2^-8 .. 2^-6
    return 0x01010101u * (119 + 126) + (bits & 0x01010101u) + (bits >> 8 & 0x01010101u);
  } else if constexpr (std::is_same_v<Layout, Int4GranuleLayout>) {  // two of 2^-8 .. 2^-7
    return 0x3b803b80u + (bits & 0x007f007fu);
  } else {  // 4 .. 15, of a tensor's scale
    return 0x01010101u * 88 + (bits & 0x0f0f0f0fu);
  }
}

// Granules of random codes and scales.
template <class Layout>
__global__ void fill_granules(std::uint32_t* words, GranuleShapeOf<Layout> shape, std::size_t granules,
                              std::uint32_t seed) {
  const int words_a_granule = shape.granule_bytes() / 4;
  for (std::size_t granule = blockIdx.x; granule < granules; granule += gridDim.x) {
    for (int block = 0; block < shape.blocks(); ++block) {
      const GranulePlace place = granule_place<Layout>(block);
      const std::size_t base = granule * words_a_granule;
      words[base + place.codes / 4 + threadIdx.x] = bench::mixed(base + place.codes / 4 + threadIdx.x, seed);
      if (threadIdx.x < (granule_block_bytes<Layout> - granule_code_bytes) / 4) {
        const std::uint32_t bits = bench::mixed(base + place.scales / 4 + threadIdx.x, seed + 1);
        words[base + place.scales / 4 + threadIdx.x] = stored_scales<Layout>(bits);
      }
    }
  }
}

PairFactors tensor_scale(std::mt19937&) { return {0.001f, 0.001f}; }
float logit(std::mt19937& random) { return std::normal_distribution<float>()(random); }

// What 36 layers work on; inputs, outputs and the workspace are the same for all.
struct Inputs {
  int tokens;
  bool many;            // which kernels
  const Bf16* x;        // [tokens, hidden]
  const float* logits;  // [layers, tokens, experts]
  std::int32_t* ids;    // [layers, tokens, top_k]
  float* weights;       // [layers, tokens, top_k]
  float* out;           // [tokens, hidden]
  MoeCudaWorkspace workspace;
};

template <class Granules>
struct Bench {
  using Layout = typename Granules::Layout;
  LayerShape of;
  int experts, blocks;
  double read_peak;
  GranuleShapeOf<Layout> up{2 * of.intermediate, of.hidden}, down{of.hidden, of.intermediate};
  DeviceBuffer weights, tensor_scales, up_bias, down_bias;

  Bench(const LayerShape& shape, int experts_, int blocks_, double read_peak_, std::mt19937& random)
      : of(shape), experts(experts_), blocks(blocks_), read_peak(read_peak_) {
    const std::size_t layer_bytes = static_cast<std::size_t>(experts) * (up.bytes() + down.bytes());
    weights = bench::room(layer_bytes * layers);
    for (int layer = 0; layer < layers; ++layer) {
      const std::uint32_t seed = static_cast<std::uint32_t>(layer) * 16;
      std::uint8_t* at = weights.as<std::uint8_t>() + layer_bytes * static_cast<std::size_t>(layer);
      fill_granules<Layout><<<2048, 128>>>(reinterpret_cast<std::uint32_t*>(at), up,
                                           static_cast<std::size_t>(experts) * up.granules(), seed);
      fill_granules<Layout><<<2048, 128>>>(
          reinterpret_cast<std::uint32_t*>(at + static_cast<std::size_t>(experts) * up.bytes()), down,
          static_cast<std::size_t>(experts) * down.granules(), seed + 4);
    }
    cuda_check(cudaGetLastError());
    tensor_scales = filled(static_cast<std::size_t>(experts), tensor_scale, random);
    up_bias = filled(static_cast<std::size_t>(experts) * up.rows, small, random);
    down_bias = filled(static_cast<std::size_t>(experts) * down.rows, small, random);
    cuda_check(cudaDeviceSynchronize());
  }

  Granules granules(const std::uint8_t* at, const GranuleShapeOf<Layout>& shape) {
    Granules made{at, experts, shape};
    if constexpr (std::is_same_v<Granules, Nvfp4Granules>)
      made.tensor_scales = tensor_scales.as<PairFactors>();
    return made;
  }

  MoeCudaWeightsOf<Granules> layer(int index) {
    const std::size_t up_bytes = static_cast<std::size_t>(experts) * up.bytes();
    std::uint8_t* at =
        weights.as<std::uint8_t>() +
        (up_bytes + static_cast<std::size_t>(experts) * down.bytes()) * static_cast<std::size_t>(index);
    return {.gate_up = granules(at, up),
            .down = granules(at + up_bytes, down),
            .gate_up_bias = of.biased ? up_bias.as<Bf16>() : nullptr,
            .down_bias = of.biased ? down_bias.as<Bf16>() : nullptr,
            .unit = of.unit};
  }

  // Of a layer. route: the router's choice before each layer.
  bench::Times time(const Inputs& inputs, bool route) {
    return bench::time_graph(layers, replays_of(inputs.tokens), [&](cudaStream_t stream) {
      for (int index = 0; index < layers; ++index) queue(inputs, index, route, stream);
    });
  }

  void queue(const Inputs& inputs, int index, bool route, cudaStream_t stream) {
    const std::size_t row = static_cast<std::size_t>(index) * static_cast<std::size_t>(inputs.tokens);
    const std::size_t first_slot = row * static_cast<std::size_t>(of.top_k);
    std::int32_t* ids = inputs.ids + first_slot;
    float* weights_of_ids = inputs.weights + first_slot;
    if (route) {
      const Status status =
          route_top_k_cuda({.logits = inputs.logits + row * static_cast<std::size_t>(experts),
                            .rows = inputs.tokens,
                            .experts = experts,
                            .top_k = of.top_k,
                            .expert_ids = ids,
                            .expert_weights = weights_of_ids},
                           stream);
      NIBBLE_CHECK(status.ok(), status.message());
    }
    const MoeCudaArgs args{.x = inputs.x,
                           .x_stride = up.padded_cols(),
                           .tokens = inputs.tokens,
                           .top_k = of.top_k,
                           .expert_ids = ids,
                           .expert_weights = weights_of_ids,
                           .out = inputs.out,
                           .workspace = inputs.workspace,
                           .blocks = blocks};
    const Status status =
        inputs.many ? moe_many_cuda(layer(index), args, stream) : moe_few_cuda(layer(index), args, stream);
    NIBBLE_CHECK(status.ok(), status.message());
  }

  static constexpr const char* name = std::is_same_v<Granules, Mxfp4Granules>   ? "mxfp4"
                                      : std::is_same_v<Granules, Nvfp4Granules> ? "nvfp4"
                                                                                : "int4";

  // One line of the table, also as JSON.
  std::string run(int tokens, const std::string& kernels, std::mt19937& random) {
    const std::size_t rows = static_cast<std::size_t>(tokens), hidden = static_cast<std::size_t>(of.hidden),
                      top_k = static_cast<std::size_t>(of.top_k);
    const int all_slots = tokens * of.top_k;
    const bool many = kernels.empty() ? moe_takes_many(all_slots, experts, moe_many_tokens_from(read_peak))
                                      : kernels == "many";
    const std::size_t slots =
        many ? rows * top_k : static_cast<std::size_t>(moe_cuda_slots(tokens, of.top_k));
    DeviceBuffer x = filled(rows * static_cast<std::size_t>(up.padded_cols()), normal, random);
    DeviceBuffer room = zeroed(many ? moe_many_bytes(all_slots, experts, up, down) : 0);
    DeviceBuffer counters = zeroed(static_cast<std::size_t>(moe_many_counters(all_slots, experts)) * 4);
    DeviceBuffer logits = filled(rows * static_cast<std::size_t>(experts) * layers, logit, random);
    DeviceBuffer ids = zeroed(rows * top_k * layers * 4), route_weights = zeroed(rows * top_k * layers * 4);
    DeviceBuffer activations = zeroed(slots * static_cast<std::size_t>(down.padded_cols()) * 2);
    DeviceBuffer products = zeroed(slots * hidden * 4), arrived = zeroed(4), out = zeroed(rows * hidden * 4);
    const Inputs inputs{
        .tokens = tokens,
        .many = many,
        .x = x.as<Bf16>(),
        .logits = logits.as<float>(),
        .ids = ids.as<std::int32_t>(),
        .weights = route_weights.as<float>(),
        .out = out.as<float>(),
        .workspace = {activations.as<Bf16>(), products.as<float>(), arrived.as<std::uint32_t>(),
                      room.as<std::uint8_t>(), counters.as<std::uint32_t>()}};
    const bench::Times routed = time(inputs, true), given = time(inputs, false);

    std::vector<std::int32_t> chosen(rows * top_k * layers);
    ids.copy_to(std::span(chosen));
    double distinct = 0;
    for (std::size_t index = 0; index < layers; ++index) {
      const auto first = chosen.begin() + static_cast<std::ptrdiff_t>(index * rows * top_k);
      distinct +=
          static_cast<double>(
              std::set<std::int32_t>(first, first + static_cast<std::ptrdiff_t>(rows * top_k)).size()) /
          layers;
    }
    const double share =
        distinct * static_cast<double>(up.bytes() + down.bytes()) / (given.median * 1e-6) / read_peak;
    const double tflops = 6.0 * of.hidden * of.intermediate * all_slots / (given.median * 1e-6) / 1e12;
    std::printf(
        "%s %d x %d top %d %4d experts %5d tokens (%s) %9.2f us a layer (%.2f .. %.2f), %9.2f with the "
        "router  %6.1f "
        "distinct  "
        "%5.1f %% of %.0f GB/s  %6.1f TFLOP/s\n",
        name, of.hidden, of.intermediate, of.top_k, experts, tokens, many ? "many" : "few", given.median,
        given.least, given.most, routed.median, distinct, 100 * share, read_peak * 1e-9, tflops);
    std::fflush(stdout);
    char line[400];
    std::snprintf(
        line, sizeof line,
        "{\"format\": \"%s\", \"hidden\": %d, \"intermediate\": %d, \"top_k\": %d, \"experts\": %d, "
        "\"tokens\": %d, \"kernels\": \"%s\", \"us\": %.2f, "
        "\"us_min\": %.2f, "
        "\"us_max\": %.2f, \"us_with_router\": %.2f, \"distinct\": %.2f, \"share_of_read_peak\": %.4f, "
        "\"read_peak\": %.4g, \"tflops\": %.1f}",
        name, of.hidden, of.intermediate, of.top_k, experts, tokens, many ? "many" : "few", given.median,
        given.least, given.most, routed.median, distinct, share, read_peak, tflops);
    return line;
  }
};

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  using namespace nibble;
  std::vector<int> experts = {128, 32}, tokens = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192};
  int blocks = 0;  // one on each multiprocessor
  LayerShape shape;
  const char* json = nullptr;
  std::string kernels;  // empty: those to take
  std::string format = "mxfp4";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--experts") experts = bench::numbers(argv[i + 1]);
    if (option == "--tokens") tokens = bench::numbers(argv[i + 1]);
    if (option == "--format") format = argv[i + 1];
    if (option == "--kernels") kernels = argv[i + 1];
    if (option == "--hidden") shape.hidden = std::atoi(argv[i + 1]);
    if (option == "--intermediate") shape.intermediate = std::atoi(argv[i + 1]);
    if (option == "--top-k") shape.top_k = std::atoi(argv[i + 1]);
    if (option == "--unit" && std::string(argv[i + 1]) == "silu")
      shape.unit = silu_unit, shape.biased = false;
    if (option == "--blocks") blocks = std::atoi(argv[i + 1]);
    if (option == "--json") json = argv[i + 1];
  }
  if (!bench::has_gpu()) return 77;
  std::mt19937 random(1);
  const bench::ReadPeak memory = bench::measure_read_peak();
  std::vector<std::string> lines;
  const auto run = [&](auto&& layers_of) {
    for (const int batch : tokens) lines.push_back(layers_of.run(batch, kernels, random));
  };
  for (const int count : experts) {
    if (format == "nvfp4")
      run(Bench<Nvfp4Granules>(shape, count, blocks, memory.rate, random));
    else if (format == "int4")
      run(Bench<Int4Granules>(shape, count, blocks, memory.rate, random));
    else
      run(Bench<Mxfp4Granules>(shape, count, blocks, memory.rate, random));
  }
  bench::write_json(json, lines);
  return 0;
}
