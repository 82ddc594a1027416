// How fast attention runs, by default gpt-oss's with 64 heads on 8 KV heads of 64 dimensions and sinks:
// graphs of layers with keys and values of their own, as many as keep them out of the second-level cache;
// random queries, keys and values.
//
//   attention_cuda_bench [--heads 64,8,64] [--batch 1,8,32] [--positions 1024,8192,65536] [--kv bfloat16|fp8]
//                        [--json FILE]
//
// Prints a line for each case. Decode is one row a sequence, by batch and positions, whole and with a window
// of 128 that ends anywhere in its step. Its line has microseconds, and how fast the bytes that are seen
// come, as a share of what a kernel that only reads gets from this GPU. Prefill is one prompt's, in
// microseconds and TFLOP/s, counting 4 operations a query, position seen and dimension. As in a forward,
// tables and earlier keys and values are settled before the kernel ahead begins. A case of short contexts has
// two lines: with the kernel that is for those, and with the one for contexts of any length. Heads of other
// than 64 dimensions have neither sinks nor windows.
#include <cmath>

#include "ops/attention/cuda/attention_cuda.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/read_peak.cuh"
#include "ops/linear/cuda/dense_tiles.h"

namespace nibble {
namespace {

constexpr int page_size = 128;
struct Heads {
  int queries = 64, keys = 8, dims = kv_head_dim;

  bool are_of_gpt_oss() const { return dims == kv_head_dim; }
};
struct Case {
  int batch, positions, window, rows;  // rows: of each sequence, the last ones
  DType dtype;                         // of keys and values
  bool short_contexts = false;         // said to be short
};

// By how much a sequence is shorter than the case says: windows end all over their steps.
int shorter_by(const Case& c, int sequence) {
  return c.window > 0 && c.rows == 1 ? 37 * sequence % attention_step : 0;
}

// Magnitudes from 2^-3 to 2^0, signs and mantissas random.
__global__ void fill_e4m3(std::uint32_t* words, std::size_t count, std::uint32_t seed) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    words[i] = (bench::mixed(i, seed) & 0x9f9f9f9fu) + 0x20202020u;
}
DeviceBuffer random_cache(std::size_t elements, DType dtype, std::uint32_t seed) {
  if (dtype == DType::bf16) return bench::random_weights(elements * 2, seed);
  DeviceBuffer buffer = bench::room(elements);
  fill_e4m3<<<2048, 256>>>(buffer.as<std::uint32_t>(), elements / 4, seed);
  cuda_check(cudaGetLastError());
  cuda_check(cudaDeviceSynchronize());
  return buffer;
}

// That so long a context needs.
int later_clusters(const Heads& heads, int positions) {
  return (positions - 1) / attention_cluster_positions(heads.dims);
}

std::string run(const Heads& heads, const Case& c, double read_peak, std::mt19937& random) {
  const int kv_heads = heads.keys, width = heads.queries * heads.dims;
  const int pages = (c.positions + page_size - 1) / page_size, slots = c.batch * pages * page_size;
  const std::size_t layer_elements =
      static_cast<std::size_t>(slots) * static_cast<std::size_t>(kv_heads * heads.dims);
  const std::size_t element_bytes = dtype_bytes(c.dtype);
  const double kv_bytes = 2.0 * kv_heads * heads.dims * static_cast<double>(element_bytes);  // a position
  const double bytes_seen =
      kv_bytes * c.batch * (c.window > 0 ? std::min(c.window, c.positions) : c.positions);
  const double layer_bytes = 2.0 * static_cast<double>(element_bytes * layer_elements);
  // Windows see little of their layers: 36 of them even where the rest of the cache takes gigabytes.
  const int layers = c.rows > 1 ? 4 : std::clamp(static_cast<int>(20e9 / layer_bytes), 4, 36);
  DeviceBuffer keys = random_cache(layer_elements * static_cast<std::size_t>(layers), c.dtype, 3);
  DeviceBuffer values = random_cache(layer_elements * static_cast<std::size_t>(layers), c.dtype, 4);

  std::vector<std::int32_t> table(static_cast<std::size_t>(c.batch * pages));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
  std::shuffle(table.begin(), table.end(), random);
  std::vector<SequenceCuda> sequences;
  for (int i = 0; i < c.batch; ++i)
    sequences.push_back({i * c.rows, c.rows, c.positions - c.rows - shorter_by(c, i), i * pages});
  const std::size_t rows = static_cast<std::size_t>(c.batch * c.rows);
  const int splits = c.batch * attention_splits(c.positions, heads.dims);
  DeviceBuffer q = bench::filled<Bf16>(rows * static_cast<std::size_t>(width), bench::normal, random);
  DeviceBuffer device_table = bench::copied(table), device_sequences = bench::copied(sequences);
  DeviceBuffer sinks = bench::copied(std::vector<float>(static_cast<std::size_t>(heads.queries), 0.5f));
  DeviceBuffer out = bench::zeroed(DenseShape{0, width}.token_bytes(static_cast<int>(rows)));
  const AttentionRows which = c.rows > 1 ? AttentionRows::many : AttentionRows::one;
  DeviceBuffer partials = bench::room(c.rows > 1 ? 0 : attention_partials(splits, kv_heads, heads.dims) * 4);
  partials.fill(0xff);
  const bench::Times times = bench::time_graph(layers, c.rows > 1 ? 5 : 25, [&](cudaStream_t stream) {
    for (int layer = 0; layer < layers; ++layer) {
      const std::size_t at = layer_elements * element_bytes * static_cast<std::size_t>(layer);
      bench::require(attention_cuda(
          {.q = q.as<Bf16>(),
           .heads = heads.queries,
           .sequences = device_sequences.as<SequenceCuda>(),
           .sequence_count = c.batch,
           .page_table = device_table.as<std::int32_t>(),
           .page_size = page_size,
           .cache = {keys.data() + at, values.data() + at, kv_heads, slots, c.dtype, heads.dims},
           .window = c.window,
           .sinks = heads.are_of_gpt_oss() ? sinks.as<float>() : nullptr,
           .scale = 1.0f / std::sqrt(static_cast<float>(heads.dims)),
           .out = out.as<std::uint8_t>(),
           .rows = which,
           .later_clusters = c.short_contexts ? later_clusters(heads, c.positions) : attention_any_context,
           .max_splits = splits,
           .settled = true,
           .workspace = {partials.as<float>()}},
          stream));
    }
  });
  double seen = 0;  // positions, over all rows
  for (int row = c.positions - c.rows + 1; row <= c.positions; ++row)
    seen += static_cast<double>(c.batch) * (c.window > 0 ? std::min(c.window, row) : row);
  const double seconds = times.median * 1e-6;
  const double share = bytes_seen / seconds / read_peak;
  const double tflops = 4.0 * width * seen / seconds / 1e12;
  std::printf(
      "%s %4d x %4d rows, %6d positions, window %4d%s: %9.2f us (%.2f .. %.2f)  %5.1f %% of %.0f GB/s  %6.1f "
      "TFLOP/s\n",
      c.dtype == DType::bf16 ? "bfloat16" : "     fp8", c.batch, c.rows, c.positions, c.window,
      c.short_contexts ? ", short" : "", times.median, times.least, times.most, 100 * share, read_peak * 1e-9,
      tflops);
  std::fflush(stdout);
  char line[384];
  std::snprintf(line, sizeof line,
                "{\"heads\": \"%d/%d/%d\", \"kv\": \"%s\", \"short_contexts\": %s, \"batch\": %d, \"rows\": "
                "%d, \"positions\": %d, \"window\": %d, \"us\": "
                "%.2f, \"us_min\": %.2f, "
                "\"us_max\": %.2f, \"share_of_read_peak\": %.4f, \"read_peak\": %.4g, \"tflops\": %.1f}",
                heads.queries, heads.keys, heads.dims, c.dtype == DType::bf16 ? "bfloat16" : "fp8",
                c.short_contexts ? "true" : "false", c.batch, c.rows, c.positions, c.window, times.median,
                times.least, times.most, share, read_peak, tflops);
  return line;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  using namespace nibble;
  std::vector<int> batches = {1, 8, 32}, lengths = {1024, 8192, 65536};
  std::vector<DType> dtypes = {DType::bf16, DType::f8_e4m3};
  Heads heads;
  const char* json = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--heads") {
      const std::vector<int> of_heads = bench::numbers(argv[i + 1]);
      if (of_heads.size() == 3) heads = {of_heads[0], of_heads[1], of_heads[2]};
    }
    if (option == "--batch") batches = bench::numbers(argv[i + 1]);
    if (option == "--positions") lengths = bench::numbers(argv[i + 1]);
    if (option == "--kv") dtypes = {std::string(argv[i + 1]) == "fp8" ? DType::f8_e4m3 : DType::bf16};
    if (option == "--json") json = argv[i + 1];
  }
  if (!bench::has_gpu()) return 77;
  std::mt19937 random(1);
  const bench::ReadPeak memory = bench::measure_read_peak();
  const std::vector<int> windows = heads.are_of_gpt_oss() ? std::vector<int>{0, 128} : std::vector<int>{0};
  std::vector<std::string> lines;
  for (const DType dtype : dtypes) {
    for (const int batch : batches) {
      for (const int positions : lengths) {
        if (batch == 8 && positions == 65536) continue;
        for (const int window : windows) {
          if (window > 0 && positions != 8192) continue;
          const bool is_short =
              window == 0 &&
              later_clusters(heads, positions) <=
                  attention_later_clusters(heads.keys, heads.queries / heads.keys, processors_of_device());
          if (is_short && batch <= attention_short_contexts)
            lines.push_back(run(heads, {batch, positions, window, 1, dtype, true}, memory.rate, random));
          lines.push_back(run(heads, {batch, positions, window, 1, dtype}, memory.rate, random));
        }
      }
    }
    for (const int window : windows) {
      for (const int positions : lengths) {
        if (positions > 8192) continue;
        lines.push_back(run(heads, {1, positions, window, positions, dtype}, memory.rate, random));
      }
    }
  }
  bench::write_json(json, lines);
  return 0;
}
