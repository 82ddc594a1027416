// How fast the gated delta rule runs, from rows of projections to the input of the output's matrix, on layers
// with states of their own: sequences of one row in the middle of a chunk, and prompts from position 0.
//
//   gated_delta_cuda_bench [--heads 16,32] [--batch 1,8,64] [--rows 1024,8192] [--json FILE]
//
// Heads are those of keys and of values, of 128 dimensions each. Prints a line for each batch of decode and
// for each prompt: microseconds a layer, and the share of the speed at which a kernel that only reads gets
// the bytes that are seen: inputs and outputs, and in decode states and open rows.
#include "ops/cuda/bench_util.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/read_peak.cuh"
#include "ops/gated_delta/cuda/gated_delta_cuda.h"
#include "ops/linear/cuda/dense_tiles.h"

namespace nibble {
namespace {

constexpr int open_rows = 32;  // of a sequence that decodes

struct Case {
  DeltaShape shape;
  int batch, rows;  // rows: of each sequence
};

DeviceBuffer floats(std::size_t count, float most, std::mt19937& random) {
  std::uniform_real_distribution<float> values(-most, most);
  std::vector<float> some(std::min<std::size_t>(count, 1 << 20));
  for (float& value : some) value = values(random);
  std::vector<float> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = some[i * 7919 % some.size()];
  return bench::copied(all);
}

std::string run(const Case& c, double read_peak, std::mt19937& random) {
  const DeltaShape& shape = c.shape;
  const int rows = c.batch * c.rows, layers = c.rows > 1 ? 4 : 24;
  const auto count = [](std::int64_t of) { return static_cast<std::size_t>(of); };
  const std::size_t slots = count(c.batch * delta_state_bytes(shape));
  const int stride = shape.channels() + shape.values() + 2 * shape.value_heads;
  const DeviceBuffer memory = bench::zeroed(slots * count(layers));
  const DeviceBuffer projected = floats(count(std::int64_t{rows} * stride), 1, random);
  const DeviceBuffer convolution = floats(count(shape.taps * shape.channels()), 0.5f, random),
                     rate = floats(count(shape.value_heads), 1, random),
                     bias = floats(count(shape.value_heads), 1, random),
                     norm = floats(count(shape.value_dim), 1, random);
  std::vector<StateRowsCuda> sequences;
  std::vector<std::int32_t> of_row;
  for (int i = 0; i < c.batch; ++i) {
    sequences.push_back({i * c.rows, c.rows, c.rows > 1 ? 0 : delta_chunk + open_rows, i, 0, 0});
    of_row.insert(of_row.end(), count(c.rows), i);
  }
  const DeviceBuffer on_sequences = bench::copied(sequences), on_rows = bench::copied(of_row),
                     borders = bench::zeroed(sizeof(BorderState));
  const DenseShape tiles{0, shape.values()};
  const DeviceBuffer qkv = bench::room(count(std::int64_t{rows} * shape.channels()) * sizeof(float)),
                     decays = bench::room(count(rows * shape.value_heads) * sizeof(double)),
                     betas = bench::room(count(rows * shape.value_heads) * sizeof(float)),
                     products = bench::room(count(delta_product_floats(shape, rows)) * sizeof(float)),
                     mixed = bench::room(count(std::int64_t{rows} * shape.values()) * sizeof(float)),
                     out = bench::room(tiles.token_bytes(rows));
  const int served = shape.value_heads / shape.key_heads, of_head = served * shape.value_dim;
  const DeltaColumns columns{.q = {0, shape.key_dim, 0},
                             .k = {shape.keys(), shape.key_dim, 0},
                             .v = {2 * shape.keys(), of_head, shape.value_dim},
                             .z = {shape.channels(), of_head, shape.value_dim},
                             .b = {stride - 2 * shape.value_heads, served, 1},
                             .a = {stride - shape.value_heads, served, 1}};
  const auto in = [](const DeviceBuffer& buffer) {
    return reinterpret_cast<float*>(const_cast<std::byte*>(buffer.data()));
  };
  const bench::Times times = bench::time_graph(layers, c.rows > 1 ? 5 : 15, [&](cudaStream_t stream) {
    for (int layer = 0; layer < layers; ++layer) {
      auto* const of_layer = const_cast<std::byte*>(memory.data()) + slots * count(layer);
      bench::require(gated_delta_cuda(
          {.layer = {.shape = shape, .memory = of_layer, .snapshots = of_layer},
           .step = {.rows = rows,
                    .sequences = c.batch,
                    .one_row_each = c.rows == 1,
                    .of_sequence = reinterpret_cast<const StateRowsCuda*>(on_sequences.data()),
                    .sequence_of_row = reinterpret_cast<const std::int32_t*>(on_rows.data()),
                    .borders = reinterpret_cast<const BorderState*>(borders.data())},
           .columns = columns,
           .projected = in(projected),
           .gates = in(projected),
           .projected_stride = stride,
           .gates_stride = stride,
           .convolution = in(convolution),
           .rate = in(rate),
           .bias = in(bias),
           .norm = in(norm),
           .eps = 1e-6f,
           .qkv = in(qkv),
           .decays = reinterpret_cast<double*>(in(decays)),
           .betas = in(betas),
           .products = in(products),
           .mixed = in(mixed),
           .out = reinterpret_cast<std::uint8_t*>(in(out))},
          stream));
    }
  });
  const double of_states =
      c.rows > 1 ? 2 : static_cast<double>(delta_state_bytes(shape)) * (open_rows + 64) / 128;
  const double bytes =
      double{static_cast<double>(rows)} * (stride * 4 + shape.values() * 2) + c.batch * of_states;
  const double share = bytes / (times.median * 1e-6) / read_peak;
  std::printf("%2d/%2d heads, %3d x %5d rows: %9.2f us (%.2f .. %.2f)  %5.1f %% of %.0f GB/s\n",
              shape.key_heads, shape.value_heads, c.batch, c.rows, times.median, times.least, times.most,
              100 * share, read_peak * 1e-9);
  std::fflush(stdout);
  char line[256];
  std::snprintf(line, sizeof line,
                "{\"key_heads\": %d, \"value_heads\": %d, \"batch\": %d, \"rows\": %d, \"us\": %.2f, "
                "\"us_min\": %.2f, \"us_max\": %.2f, \"share_of_read_peak\": %.4f, \"read_peak\": %.4g}",
                shape.key_heads, shape.value_heads, c.batch, c.rows, times.median, times.least, times.most,
                share, read_peak);
  return line;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  using namespace nibble;
  std::vector<int> heads = {16, 32}, batches = {1, 8, 64}, lengths = {1024, 8192};
  const char* json = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--heads") heads = bench::numbers(argv[i + 1]);
    if (option == "--batch") batches = bench::numbers(argv[i + 1]);
    if (option == "--rows") lengths = bench::numbers(argv[i + 1]);
    if (option == "--json") json = argv[i + 1];
  }
  if (heads.size() != 2) heads = {16, 32};
  if (!bench::has_gpu()) return 77;
  std::mt19937 random(1);
  const bench::ReadPeak memory = bench::measure_read_peak();
  const DeltaShape shape{
      .key_heads = heads[0], .value_heads = heads[1], .key_dim = 128, .value_dim = 128, .taps = 4};
  std::vector<std::string> lines;
  for (const int batch : batches) lines.push_back(run({shape, batch, 1}, memory.rate, random));
  for (const int rows : lengths) lines.push_back(run({shape, 1, rows}, memory.rate, random));
  bench::write_json(json, lines);
  return 0;
}
