// How fast gpt-oss's dense products run: graphs of 36 of them with weights of their own (lm_head: 2), so that
// the second-level cache holds none of the next one's; random weights and inputs.
//
//   linear_cuda_bench [--tokens 1,2,4,8,...] [--json FILE]
//
// Prints a line for each product and number of tokens, with the path that linear_cuda chooses (where it
// changes, with the other one too): microseconds (median of the replays), share, on the bytes
// of the weights, of what a kernel that only reads gets from this GPU, TFLOP/s.
#include "ops/cuda/launch.cuh"
#include "ops/cuda/read_peak.cuh"
#include "ops/linear/cuda/linear_cuda.h"

namespace nibble {
namespace {

struct Product {
  const char* name;
  DenseShape shape;
  int layers;
  bool qkv;
  int most_tokens;
};
constexpr Product products[] = {{"qkv", {5120, 2880}, 36, true, 8192},
                                {"o", {2880, 4096}, 36, false, 8192},
                                {"router", {128, 2880}, 36, false, 8192},
                                {"lm_head", {201088, 2880}, 2, false, 128}};
constexpr int heads = 64, kv_heads = 8, slots = 8192;

struct Buffers {
  DeviceBuffer x, bias, y, cos, sin, kv_slots, q, keys, values, few_sums, many_sums, arrived;
};

Buffers buffers_for(const Product& product, int tokens, std::mt19937& random) {
  const std::size_t rows = static_cast<std::size_t>(tokens);
  std::vector<std::int32_t> places(rows);
  for (std::size_t i = 0; i < rows; ++i) places[i] = static_cast<std::int32_t>(i % slots);
  const int processors = processors_of_device();
  const std::size_t cache = product.qkv ? std::size_t{kv_heads} * slots * 64 * 2 : 0;
  float (*const angle)(std::mt19937&) = [](std::mt19937& from) {
    return std::uniform_real_distribution<float>(-1, 1)(from);
  };
  return {.x = bench::random_weights(product.shape.token_bytes(tokens), 7),
          .bias = bench::filled<Bf16>(static_cast<std::size_t>(product.shape.rows), bench::small, random),
          .y = bench::zeroed(product.qkv ? 0 : rows * static_cast<std::size_t>(product.shape.rows) * 4),
          .cos = bench::filled<float>(rows * 32, angle, random),
          .sin = bench::filled<float>(rows * 32, angle, random),
          .kv_slots = bench::copied(places),
          .q = bench::zeroed(product.qkv ? rows * heads * 64 * 2 : 0),
          .keys = bench::zeroed(cache),
          .values = bench::zeroed(cache),
          .few_sums = bench::zeroed(linear_few_floats(processors, tokens) * 4),
          .many_sums = bench::zeroed(linear_many_floats(processors) * 4),
          .arrived = bench::zeroed(static_cast<std::size_t>(processors) * 4)};
}

LinearCudaWorkspace workspace_of(Buffers& room) {
  return {room.few_sums.as<float>(), room.many_sums.as<float>(), room.arrived.as<std::uint32_t>()};
}

void queue(const Product& product, Buffers& room, const std::uint8_t* weights, int tokens, LinearPath path,
           cudaStream_t stream) {
  const TokenTiles x{room.x.as<std::uint8_t>(), tokens};
  const LinearCudaWorkspace workspace = workspace_of(room);
  if (product.qkv) {
    bench::require(qkv_cuda({.x = x,
                             .weight = {weights, product.shape},
                             .bias = room.bias.as<Bf16>(),
                             .heads = heads,
                             .cos = room.cos.as<float>(),
                             .sin = room.sin.as<float>(),
                             .kv_slots = room.kv_slots.as<std::int32_t>(),
                             .q = room.q.as<Bf16>(),
                             .cache = {room.keys.as<Bf16>(), room.values.as<Bf16>(), kv_heads, slots},
                             .workspace = workspace,
                             .path = path},
                            stream));
  } else {
    bench::require(linear_cuda({.x = x,
                                .weight = {weights, product.shape},
                                .bias = room.bias.as<Bf16>(),
                                .y = room.y.as<float>(),
                                .y_stride = product.shape.rows,
                                .workspace = workspace,
                                .path = path},
                               stream));
  }
}

std::string run(const Product& product, const DeviceBuffer& weights, int tokens, LinearPath path,
                double read_peak, std::mt19937& random) {
  Buffers room = buffers_for(product, tokens, random);
  clear_linear_workspace(workspace_of(room), processors_of_device(), tokens, nullptr);
  const auto* at = reinterpret_cast<const std::uint8_t*>(weights.data());
  const bench::Times times =
      bench::time_graph(product.layers, tokens > 512 ? 5 : 25, [&](cudaStream_t stream) {
        for (int layer = 0; layer < product.layers; ++layer)
          queue(product, room, at + static_cast<std::size_t>(layer) * product.shape.bytes(), tokens, path,
                stream);
      });
  const double seconds = times.median * 1e-6;
  const double share = static_cast<double>(product.shape.bytes()) / seconds / read_peak;
  const double tflops = 2.0 * product.shape.rows * product.shape.cols * tokens / seconds / 1e12;
  const bool many = path == LinearPath::many;
  const char* const name = many ? "many" : "few";
  std::printf("%-8s %5d tokens (%s) %9.2f us (%.2f .. %.2f)  %5.1f %% of %.0f GB/s  %6.1f TFLOP/s\n",
              product.name, tokens, name, times.median, times.least, times.most, 100 * share,
              read_peak * 1e-9, tflops);
  std::fflush(stdout);
  char line[256];
  std::snprintf(line, sizeof line,
                "{\"product\": \"%s\", \"tokens\": %d, \"path\": \"%s\", \"us\": %.2f, \"us_min\": %.2f, "
                "\"us_max\": %.2f, \"share_of_read_peak\": %.4f, \"read_peak\": %.4g, \"tflops\": %.1f}",
                product.name, tokens, name, times.median, times.least, times.most, share, read_peak, tflops);
  return line;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  using namespace nibble;
  std::vector<int> tokens = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192};
  const char* json = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--tokens") tokens = bench::numbers(argv[i + 1]);
    if (option == "--json") json = argv[i + 1];
  }
  if (!bench::has_gpu()) return 77;
  std::mt19937 random(1);
  const bench::ReadPeak memory = bench::measure_read_peak();
  std::vector<std::string> lines;
  for (const Product& product : products) {
    const DeviceBuffer weights =
        bench::random_weights(product.shape.bytes() * static_cast<std::size_t>(product.layers), 3);
    for (const int count : tokens) {
      if (count > product.most_tokens) continue;
      if (count <= linear_few_tokens)
        lines.push_back(run(product, weights, count, LinearPath::few, memory.rate, random));
      if (count >= linear_few_tokens)
        lines.push_back(run(product, weights, count, LinearPath::many, memory.rate, random));
    }
  }
  bench::write_json(json, lines);
  return 0;
}
