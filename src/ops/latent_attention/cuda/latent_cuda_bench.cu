// How fast latent attention runs on vectors of 512 + 64: graphs of layers with caches of their own, as many
// as keep them out of the second-level cache; random queries and vectors.
//
//   latent_cuda_bench [--heads 20,64,128] [--batch 1,8,64] [--positions 1024,8192]
//                     [--path faster,tiles,clusters] [--prompts 0] [--json FILE]
//
// Prints a line for each case, first of decode (one row a sequence), then of the last rows of a prompt that a
// launch takes at once. Of decode there is a line for each path that is asked for, without --path for what is
// faster: blocks with tiles of 64 queries, or clusters with tiles of 16, which take up to 512 queries. A line
// has microseconds; the share of the speed at which a kernel that only reads gets the bytes that are seen;
// TFLOP/s, which count 2 x (576 + 512) a head and position; and the kernel.
#include "ops/cuda/bench_util.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/read_peak.cuh"
#include "ops/latent_attention/cuda/latent_cuda.h"

namespace nibble {
namespace {

constexpr int rank = 512, rotated = 64, width = rank + rotated, page_size = 64;
struct Case {
  int heads, batch, positions, rows;  // rows: of each sequence, the last ones
  LatentPath path = LatentPath::faster;

  // As a decode step's graph for one sequence.
  LatentCudaKernels kernels() const {
    return {.path = path, .short_context = batch == 1 && positions <= latent_short_positions};
  }
  bool are_clusters() const { return kernels().are_clusters(batch * rows, heads, processors_of_device()); }
};
constexpr const char* path_names[] = {"faster", "tiles", "clusters"};

std::string run(const Case& c, double read_peak, std::mt19937& random) {
  const int pages = (c.positions + page_size - 1) / page_size, slots = c.batch * pages * page_size;
  const int rows = c.batch * c.rows, queries = rows * c.heads;
  const std::size_t layer_bytes = static_cast<std::size_t>(slots) * width * sizeof(Bf16);
  const int layers =
      c.rows > 1 ? 4 : std::clamp(static_cast<int>(4e9 / static_cast<double>(layer_bytes)), 4, 36);
  const DeviceBuffer vectors = bench::random_weights(layer_bytes * static_cast<std::size_t>(layers), 3);
  std::vector<std::int32_t> table(static_cast<std::size_t>(c.batch * pages));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
  std::shuffle(table.begin(), table.end(), random);
  std::vector<SequenceCuda> sequences;
  for (int i = 0; i < c.batch; ++i)
    sequences.push_back({i * c.rows, c.rows, c.positions - c.rows, i * pages});
  DeviceBuffer q = bench::random_weights(static_cast<std::size_t>(queries) * width * sizeof(Bf16), 5);
  DeviceBuffer device_table = bench::copied(table), device_sequences = bench::copied(sequences);
  DeviceBuffer out = bench::zeroed(static_cast<std::size_t>(queries) * rank * sizeof(Bf16));
  DeviceBuffer work = bench::zeroed(static_cast<std::size_t>(latent_work_bytes(rows, c.batch, c.heads)));
  DeviceBuffer totals = bench::zeroed(
      static_cast<std::size_t>(latent_total_floats(processors_of_device())) * sizeof(float) + 16);
  DeviceBuffer partials =
      bench::zeroed(static_cast<std::size_t>(latent_partial_floats(rank)) * sizeof(float));
  latent_work_cuda({.kernels = c.kernels(),
                    .sequences = device_sequences.as<SequenceCuda>(),
                    .sequence_count = c.batch,
                    .heads = c.heads,
                    .rows = rows,
                    .rows_at_once = rows,
                    .work = work.as<std::uint8_t>()},
                   nullptr);
  cuda_check(cudaDeviceSynchronize());
  const bench::Times times = bench::time_graph(layers, c.rows > 1 ? 5 : 15, [&](cudaStream_t stream) {
    for (int layer = 0; layer < layers; ++layer) {
      auto* const of_layer =
          const_cast<std::byte*>(vectors.data()) + layer_bytes * static_cast<std::size_t>(layer);
      bench::require(latent_attention_cuda({.kernels = c.kernels(),
                                            .q = q.as<Bf16>(),
                                            .rows = rows,
                                            .heads = c.heads,
                                            .work = work.as<std::uint8_t>(),
                                            .sequence_count = c.batch,
                                            .rows_at_once = rows,
                                            .page_table = device_table.as<std::int32_t>(),
                                            .page_size = page_size,
                                            .cache = {of_layer, slots, DType::bf16, rank, rotated},
                                            .settled = layer > 0,
                                            .scale = 0.07f,
                                            .out = out.as<Bf16>(),
                                            .totals = totals.as<float>(),
                                            .partials = partials.as<float>()},
                                           stream));
    }
  });
  double seen = 0;  // positions, over all rows
  for (int row = c.positions - c.rows + 1; row <= c.positions; ++row)
    seen += static_cast<double>(c.batch) * row;
  const double seconds = times.median * 1e-6;
  const double share =
      static_cast<double>(c.batch) * c.positions * width * sizeof(Bf16) / seconds / read_peak;
  const double tflops = 2.0 * (width + rank) * c.heads * seen / seconds / 1e12;
  const char* const kernel = c.are_clusters() ? "clusters" : "tiles";
  std::printf(
      "%3d heads, %4d x %4d rows, %6d positions: %9.2f us (%.2f .. %.2f)  %5.1f %% of %.0f GB/s  %6.1f "
      "TFLOP/s  %s\n",
      c.heads, c.batch, c.rows, c.positions, times.median, times.least, times.most, 100 * share,
      read_peak * 1e-9, tflops, kernel);
  std::fflush(stdout);
  char line[320];
  std::snprintf(
      line, sizeof line,
      "{\"heads\": %d, \"batch\": %d, \"rows\": %d, \"positions\": %d, \"us\": %.2f, \"us_min\": %.2f, "
      "\"us_max\": %.2f, \"share_of_read_peak\": %.4f, \"read_peak\": %.4g, \"tflops\": %.1f, \"kernel\": "
      "\"%s\"}",
      c.heads, c.batch, c.rows, c.positions, times.median, times.least, times.most, share, read_peak, tflops,
      kernel);
  return line;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  using namespace nibble;
  std::vector<int> heads = {20, 64, 128}, batches = {1, 8, 64}, lengths = {1024, 8192};
  std::string paths = "faster";
  bool has_prompts = true;
  const char* json = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--heads") heads = bench::numbers(argv[i + 1]);
    if (option == "--batch") batches = bench::numbers(argv[i + 1]);
    if (option == "--positions") lengths = bench::numbers(argv[i + 1]);
    if (option == "--path") paths = argv[i + 1];
    if (option == "--prompts") has_prompts = std::atoi(argv[i + 1]) != 0;
    if (option == "--json") json = argv[i + 1];
  }
  if (!bench::has_gpu()) return 77;
  std::mt19937 random(1);
  const bench::ReadPeak memory = bench::measure_read_peak();
  std::vector<std::string> lines;
  for (const int of_model : heads) {
    for (const int positions : lengths) {
      for (const int batch : batches) {
        for (const LatentPath path : {LatentPath::faster, LatentPath::tiles, LatentPath::clusters}) {
          const Case of_path{of_model, batch, positions, 1, path};
          if (paths.find(path_names[static_cast<int>(path)]) == std::string::npos) continue;
          if (path == LatentPath::clusters && !of_path.are_clusters()) continue;  // too many queries
          lines.push_back(run(of_path, memory.rate, random));
        }
      }
      if (!has_prompts) continue;
      const int rows = std::min(latent_rows_at_once(positions, of_model), positions);
      lines.push_back(run({of_model, 1, positions, rows}, memory.rate, random));
    }
  }
  bench::write_json(json, lines);
  return 0;
}
