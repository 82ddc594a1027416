// How fast products with matrices in blocks run, of Qwen3-30B-A3B's shape or another: attention's two
// products and the expert layer, each in a CUDA graph of at least 12 layers with weights of their own, so
// that the second-level cache holds none of the next one's; random codes, random inputs, random experts.
//
//   blocks_cuda_bench [--formats fp8,fp8_row,fp8_rounded,bf16,nvfp4] [--tokens 1,8,64,...] [--hidden 2048]
//                     [--intermediate 768] [--experts 128] [--top-k 8] [--heads 32] [--kv-heads 4]
//                     [--head-dim 128] [--kernels few|many] [--dense-shapes ROWSxCOLS,...] [--json FILE]
//
// Prints a line for each: microseconds (median of the replays), share on the bytes that must be read of what
// a kernel that only reads gets from this GPU, TFLOP/s. NVFP4: attention's products alone; bf16: experts
// alone. fp8_row: with a scale a row; fp8_rounded: of rows rounded to FP8. With --dense-shapes: products with
// one matrix of each of these shapes instead.
#include <numeric>
#include <set>
#include <sstream>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops/cuda/read_peak.cuh"
#include "ops/linear/cuda/block_linear_cuda.h"
#include "ops/moe/cuda/block_moe_cuda.h"

namespace nibble {
namespace {

constexpr int layers = 12;  // at least

struct Model {
  std::vector<std::pair<int, int>> dense_shapes;  // rows and columns; if any, nothing else is measured
  int hidden = 2048, intermediate = 768, experts = 128, top_k = 8;
  int heads = 32, kv_heads = 4, head_dim = 128;
  BlockMoePath path = BlockMoePath::faster;
};

BlockLinearPath dense_path_of(std::string_view name) {
  if (name == "few") return BlockLinearPath::few;
  if (name == "some") return BlockLinearPath::some;
  return name == "many" ? BlockLinearPath::many : BlockLinearPath::fastest;
}

struct Format {
  const char* name;
  bool scales_rows = false;
  bool rounds = false;
  BlockLinearPath path = BlockLinearPath::fastest;  // of dense products
};

float some_factor(std::mt19937&) { return 0.0005f; }

// Layers of `experts` matrices of one shape each, as many as several second-level caches.
template <class Codes>
struct Matrices {
  static constexpr std::size_t least_bytes = 256u << 20;
  BlockShape<Codes> shape;
  int experts, count;  // of layers
  DeviceBuffer codes, factors, row_scales;

  Matrices(const Format& format, BlockShape<Codes> shape_, int experts_, std::mt19937& random)
      : shape(shape_),
        experts(experts_),
        count(std::max(layers, static_cast<int>(least_bytes / (of_layer() * shape.bytes())))),
        codes(bench::random_weights(of_all() * shape.bytes(), 3)),
        factors(
            bench::filled(std::max<std::size_t>(1, of_all() * shape.factors() * 2), some_factor, random)) {
    if (format.scales_rows)
      row_scales = bench::filled(of_all() * static_cast<std::size_t>(shape.rows), some_factor, random);
  }
  std::size_t of_all() const { return static_cast<std::size_t>(count) * of_layer(); }
  std::size_t of_layer() const { return static_cast<std::size_t>(experts); }
  std::size_t bytes() const { return shape.bytes() + shape.factors() * sizeof(BlockFactors); }
  BlockMatrices<Codes> layer(int index) {
    const std::size_t at = static_cast<std::size_t>(index) * of_layer();
    return {
        codes.as<std::uint8_t>() + at * shape.bytes(),
        Codes::scaled ? factors.as<BlockFactors>() + at * shape.factors() : nullptr, experts, shape,
        row_scales.size() > 0 ? row_scales.as<float>() + at * static_cast<std::size_t>(shape.rows) : nullptr};
  }
};

// Room for rows that are rounded, where the format has them.
struct Rounding {
  mutable DeviceBuffer codes, scales;

  Rounding(const Format& format, std::size_t bytes, std::size_t rows) {
    if (format.rounds) codes = bench::zeroed(bytes), scales = bench::zeroed(rows * sizeof(float));
  }
  RoundingRoom room() const {
    if (codes.size() == 0) return {};
    return {codes.as<std::uint8_t>(), scales.as<float>()};
  }
};

int replays_of(int tokens) { return tokens > 512 ? 5 : 25; }

// What was measured, printed as it comes.
struct Report {
  double read_peak;
  std::vector<std::string> lines;

  void add(const char* format, const char* name, int tokens, const bench::Times& times, double bytes,
           double flops) {
    const double seconds = times.median * 1e-6;
    const double share = 100 * bytes / seconds / read_peak, rate = flops / seconds / 1e12;
    std::printf("%-11s %-10s %5d tokens %9.2f us (%.2f .. %.2f)  %5.1f %% of %.0f GB/s  %6.1f TFLOP/s\n",
                format, name, tokens, times.median, times.least, times.most, share, read_peak * 1e-9, rate);
    std::fflush(stdout);
    char line[256];
    std::snprintf(line, sizeof line,
                  "{\"format\": \"%s\", \"product\": \"%s\", \"tokens\": %d, \"us\": %.2f, "
                  "\"percent_of_memory\": %.1f, \"tflops\": %.1f}",
                  format, name, tokens, times.median, share, rate);
    lines.push_back(line);
  }
};

template <class Codes>
void run_dense(const Format& format, const char* name, BlockShape<Codes> shape,
               const std::vector<int>& tokens, Report& report, std::mt19937& random) {
  Matrices<Codes> matrices(format, shape, 1, random);
  const auto [rows, cols] = shape;
  for (const int count : tokens) {
    DeviceBuffer x = bench::random_weights(DenseShape{0, cols}.token_bytes(count), 7);
    DeviceBuffer y = bench::zeroed(static_cast<std::size_t>(count) * static_cast<std::size_t>(rows) * 4);
    const Rounding rounding(format, rounded_row_bytes(cols) * static_cast<std::size_t>(count),
                            static_cast<std::size_t>(count));
    const bench::Times times = bench::time_graph(matrices.count, replays_of(count), [&](cudaStream_t stream) {
      for (int layer = 0; layer < matrices.count; ++layer) {
        bench::require(block_linear_cuda(BlockLinearCudaArgs<Codes>{.x = {x.as<std::uint8_t>(), count},
                                                                    .weight = matrices.layer(layer),
                                                                    .y = y.as<float>(),
                                                                    .y_stride = rows,
                                                                    .path = format.path,
                                                                    .rounding = rounding.room()},
                                         stream));
      }
    });
    report.add(format.name, name, count, times, static_cast<double>(matrices.bytes()),
               2.0 * rows * cols * count);
  }
}

template <class Codes>
void run_experts(const Format& format, const Model& model, const std::vector<int>& tokens, Report& report,
                 std::mt19937& random) {
  Matrices<Codes> up(format, {2 * model.intermediate, model.hidden}, model.experts, random),
      down(format, {model.hidden, model.intermediate}, model.experts, random);
  for (const int count : tokens) {
    const std::size_t rows = static_cast<std::size_t>(count),
                      slots = rows * static_cast<std::size_t>(model.top_k);
    std::vector<std::int32_t> ids, all(static_cast<std::size_t>(model.experts));
    std::iota(all.begin(), all.end(), 0);
    double distinct = 0;
    for (int layer = 0; layer < layers; ++layer) {
      std::set<std::int32_t> used;
      for (int token = 0; token < count; ++token) {
        for (int choice = 0; choice < model.top_k; ++choice) {
          const std::size_t at = static_cast<std::size_t>(choice);
          std::swap(all[at], all[at + random() % (all.size() - at)]);
          ids.push_back(all[at]);
          used.insert(all[at]);
        }
      }
      distinct += static_cast<double>(used.size()) / layers;
    }
    DeviceBuffer device_ids = bench::copied(ids);
    DeviceBuffer x = bench::random_weights(rows * static_cast<std::size_t>(model.hidden) * 2, 7);
    DeviceBuffer h = bench::zeroed(slots * static_cast<std::size_t>(down.shape.padded_cols()) * 2);
    DeviceBuffer products = bench::zeroed(slots * static_cast<std::size_t>(model.hidden) * 4);
    DeviceBuffer groups = bench::zeroed(block_moe_group_bytes(static_cast<int>(slots), model.experts));
    const Rounding rounding(
        format, block_moe_rounding_bytes(count, static_cast<int>(slots), model.hidden, model.intermediate),
        slots);
    const bench::Times times = bench::time_graph(layers, replays_of(count), [&](cudaStream_t stream) {
      for (int layer = 0; layer < layers; ++layer) {
        bench::require(block_moe_cuda(
            BlockMoeWeightsOf<Codes>{up.layer(layer), down.layer(layer), silu_unit},
            {.x = x.as<Bf16>(),
             .x_stride = model.hidden,
             .tokens = count,
             .top_k = model.top_k,
             .expert_ids = device_ids.as<std::int32_t>() + static_cast<std::size_t>(layer) * slots,
             .workspace = {h.as<Bf16>(), products.as<float>(), groups.as<std::uint8_t>()},
             .path = model.path,
             .rounding = rounding.room()},
            stream));
      }
    });
    report.add(format.name, "experts", count, times,
               distinct * static_cast<double>(up.bytes() + down.bytes()),
               6.0 * model.hidden * model.intermediate * static_cast<double>(slots));
  }
}

template <class Codes>
void run_format(const Format& format, const Model& model, const std::vector<int>& tokens, Report& report,
                std::mt19937& random) {
  if constexpr (!std::is_same_v<Codes, Bf16Codes>) {
    for (const auto& [rows, cols] : model.dense_shapes) {
      const std::string name = std::to_string(rows) + "x" + std::to_string(cols);
      run_dense<Codes>(format, name.c_str(), {rows, cols}, tokens, report, random);
    }
    if (!model.dense_shapes.empty()) return;
    const int heads = model.heads * model.head_dim;
    run_dense<Codes>(format, "qkv", {heads + 2 * model.kv_heads * model.head_dim, model.hidden}, tokens,
                     report, random);
    run_dense<Codes>(format, "o", {model.hidden, heads}, tokens, report, random);
  }
  if constexpr (!std::is_same_v<Codes, Nvfp4Codes>) run_experts<Codes>(format, model, tokens, report, random);
}

std::vector<std::pair<int, int>> shapes_of(const char* text) {
  std::vector<std::pair<int, int>> shapes;
  std::istringstream all(text);
  for (std::string each; std::getline(all, each, ',');) {
    std::pair<int, int> shape;
    if (std::sscanf(each.c_str(), "%dx%d", &shape.first, &shape.second) != 2) {
      std::fprintf(stderr, "a shape is ROWSxCOLS, not %s\n", each.c_str());
      std::exit(2);
    }
    shapes.push_back(shape);
  }
  return shapes;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  using namespace nibble;
  std::vector<int> tokens = {1, 8, 32, 64, 128, 512, 2048, 8192};
  std::string formats = "fp8,bf16,nvfp4";
  const char* json = nullptr;
  BlockLinearPath dense_path = BlockLinearPath::fastest;
  Model model;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--json") json = argv[i + 1];
    if (option == "--formats") formats = argv[i + 1];
    if (option == "--tokens") tokens = bench::numbers(argv[i + 1]);
    if (option == "--hidden") model.hidden = std::atoi(argv[i + 1]);
    if (option == "--intermediate") model.intermediate = std::atoi(argv[i + 1]);
    if (option == "--experts") model.experts = std::atoi(argv[i + 1]);
    if (option == "--kernels")
      model.path = argv[i + 1] == std::string("many") ? BlockMoePath::many : BlockMoePath::few;
    if (option == "--top-k") model.top_k = std::atoi(argv[i + 1]);
    if (option == "--heads") model.heads = std::atoi(argv[i + 1]);
    if (option == "--kv-heads") model.kv_heads = std::atoi(argv[i + 1]);
    if (option == "--dense-path") dense_path = dense_path_of(argv[i + 1]);
    if (option == "--dense-shapes") model.dense_shapes = shapes_of(argv[i + 1]);
    if (option == "--head-dim") model.head_dim = std::atoi(argv[i + 1]);
  }
  if (!bench::has_gpu()) return 77;
  std::mt19937 random(1);
  Report report{.read_peak = bench::measure_read_peak().rate, .lines = {}};
  std::istringstream names(formats);
  for (std::string name; std::getline(names, name, ',');) {
    const Format format{name.c_str(), name == "fp8_row", name == "fp8_rounded", dense_path};
    if (name == "bf16") {
      run_format<Bf16Codes>(format, model, tokens, report, random);
    } else if (name == "nvfp4") {
      run_format<Nvfp4Codes>(format, model, tokens, report, random);
    } else {
      run_format<E4m3Codes>(format, model, tokens, report, random);
    }
  }
  bench::write_json(json, report.lines);
  return 0;
}
