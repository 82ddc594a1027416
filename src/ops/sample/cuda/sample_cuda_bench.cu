// How long what stands between the products of a step takes: sampling from gpt-oss's vocabulary, by the
// filters, and the residual's norm with and without the experts' sum, and with router and choice. Graphs of 8
// calls, one after the other.
//
//   sample_cuda_bench [--json FILE]
#include "ops/cuda/absent.h"
#include "ops/cuda/bench_util.cuh"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/rms_norm/cuda/rms_norm_cuda.h"
#include "ops/router/cuda/norm_router_cuda.h"
#include "ops/sample/cuda/sample_cuda.h"

namespace nibble {
namespace {

constexpr int calls = 8, vocabulary = 201088, hidden = 2880, top_k = 4;

float logit(std::mt19937& random) { return 3 * std::normal_distribution<float>()(random); }

std::string line_of(const char* what, int rows, const bench::Times& times) {
  std::printf("%-24s %5d rows %9.2f us (%.2f .. %.2f)\n", what, rows, times.median, times.least, times.most);
  std::fflush(stdout);
  char line[160];
  std::snprintf(line, sizeof line,
                "{\"what\": \"%s\", \"rows\": %d, \"us\": %.2f, \"us_min\": %.2f, \"us_max\": %.2f}", what,
                rows, times.median, times.least, times.most);
  return line;
}

struct Filter {
  const char* name;
  SampleCudaParams params;
  int likeliest;
};

std::string run_sample(const Filter& filter, int rows, std::mt19937& random) {
  const std::size_t count = static_cast<std::size_t>(rows);
  DeviceBuffer logits = bench::filled<float>(count * vocabulary, logit, random);
  std::vector<SampleCudaParams> params(count, filter.params);
  for (std::size_t i = 0; i < count; ++i) params[i].position = static_cast<std::uint32_t>(i);
  DeviceBuffer device_params = bench::copied(params), tokens = bench::zeroed(count * sizeof(SampledToken));
  DeviceBuffer ids = bench::zeroed(count * 32 * 4), logprobs = bench::zeroed(count * 32 * 4);
  DeviceBuffer workspace = bench::zeroed(sample_cuda_workspace_bytes(rows, vocabulary));
  const int cluster = sample_cuda_cluster();
  return line_of(filter.name, rows, bench::time_graph(calls, 25, [&](cudaStream_t stream) {
                   for (int call = 0; call < calls; ++call) {
                     bench::require(sample_cuda({.logits = logits.as<float>(),
                                                 .rows = rows,
                                                 .vocabulary = vocabulary,
                                                 .stride = vocabulary,
                                                 .params = device_params.as<SampleCudaParams>(),
                                                 .tokens = tokens.as<SampledToken>(),
                                                 .likeliest = filter.likeliest,
                                                 .likeliest_ids = ids.as<std::int32_t>(),
                                                 .likeliest_logprobs = logprobs.as<float>(),
                                                 .workspace = workspace.as<std::uint8_t>(),
                                                 .most_row_blocks = cluster},
                                                stream));
                   }
                 }));
}

std::string run_norm(bool experts, int rows, std::mt19937& random) {
  const std::size_t count = static_cast<std::size_t>(rows);
  DeviceBuffer residual = bench::filled<float>(count * hidden, logit, random),
               delta = bench::filled<float>(count * hidden * (experts ? top_k : 1), logit, random),
               weights = bench::filled<float>(count * top_k, logit, random),
               ids = bench::zeroed(count * top_k * 4),
               gamma = bench::filled<Bf16>(hidden, bench::normal, random),
               out = bench::zeroed(count * hidden * 2),
               tiles = bench::zeroed(DenseShape{0, hidden}.token_bytes(rows));
  AddRmsNormCudaArgs args{.residual = residual.as<float>(),
                          .residual_out = residual.as<float>(),
                          .delta = experts ? nullptr : delta.as<float>(),
                          .weight = gamma.as<Bf16>(),
                          .out = out.as<Bf16>(),
                          .out_stride = hidden,
                          .out_tiles = tiles.as<std::uint8_t>(),
                          .rows = rows,
                          .hidden = hidden,
                          .eps = 1e-5f};
  if (experts) args.experts = {delta.as<float>(), ids.as<std::int32_t>(), weights.as<float>(), top_k};
  return line_of(experts ? "norm after experts" : "norm", rows,
                 bench::time_graph(calls, 25, [&](cudaStream_t stream) {
                   for (int call = 0; call < calls; ++call) bench::require(add_rms_norm_cuda(args, stream));
                 }));
}

std::string run_norm_router(int rows, std::mt19937& random) {
  constexpr DenseShape shape{128, hidden};
  const std::size_t count = static_cast<std::size_t>(rows);
  DeviceBuffer residual = bench::filled<float>(count * hidden, logit, random),
               delta = bench::filled<float>(count * hidden, logit, random),
               residual_out = bench::zeroed(count * hidden * 4),
               gamma = bench::filled<Bf16>(hidden, bench::normal, random),
               out = bench::zeroed(count * hidden * 2),
               router = bench::random_weights(calls * shape.bytes(), 1),
               bias = bench::filled<Bf16>(128, bench::normal, random), ids = bench::zeroed(count * top_k * 4),
               weights = bench::zeroed(count * top_k * 4), sums = bench::room(norm_router_sums(128) * 4);
  make_absent(sums.as<float>(), norm_router_sums(128), nullptr);
  return line_of("norm, router, choice", rows, bench::time_graph(calls, 25, [&](cudaStream_t stream) {
                   for (std::size_t call = 0; call < calls; ++call) {
                     bench::require(norm_router_cuda(
                         {.residual = residual.as<float>(),
                          .delta = delta.as<float>(),
                          .norm_weight = gamma.as<Bf16>(),
                          .eps = 1e-5f,
                          .residual_out = residual_out.as<float>(),
                          .norm = out.as<Bf16>(),
                          .norm_stride = hidden,
                          .router = {router.as<std::uint8_t>() + call * shape.bytes(), shape},
                          .router_bias = bias.as<Bf16>(),
                          .rows = rows,
                          .top_k = top_k,
                          .expert_ids = ids.as<std::int32_t>(),
                          .expert_weights = weights.as<float>(),
                          .workspace = {sums.as<float>()}},
                         stream));
                   }
                 }));
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  using namespace nibble;
  const char* json = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--json") json = argv[i + 1];
  }
  if (!bench::has_gpu()) return 77;
  std::mt19937 random(1);
  const Filter filters[] = {{"likeliest token", {.temperature = 0}, 0},
                            {"draw", {}, 0},
                            {"draw, 20 listed", {}, 20},
                            {"draw, top_k 50", {.top_k = 50}, 0},
                            {"draw, top_p 0.95", {.top_p = 0.95f}, 0}};
  std::vector<std::string> lines;
  for (const int rows : {1, 8, 16, 32, 64, 128}) lines.push_back(run_norm_router(rows, random));
  for (const int rows : {1, 64}) {
    for (const Filter& filter : filters) lines.push_back(run_sample(filter, rows, random));
  }
  for (const int rows : {1, 8, 64, 256, 2048, 8192}) {
    for (const bool experts : {false, true}) lines.push_back(run_norm(experts, rows, random));
  }
  bench::write_json(json, lines);
  return 0;
}
