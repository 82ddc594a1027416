// How long all_reduce_norm takes over 2, 4 and 8 GPUs, as far as there are, for gpt-oss's width: one-shot,
// two-shot with the residual at its owner and everywhere, and one-shot of parts that the kernel ahead pushed,
// with that kernel. Graphs of calls, one after the other, on all members at once; the slowest member's
// median.
//
//   all_reduce_norm_cuda_bench [--output bf16|fp8|fp4] [--json FILE]
#include <algorithm>
#include <memory>
#include <numeric>

#include "comm/cuda/peer_workspace.h"
#include "ops/all_reduce_norm/cuda/all_reduce_norm_cuda.h"
#include "ops/cuda/ranks_bench_util.cuh"

namespace nibble {
namespace {

constexpr int hidden = 2880, most_rows = 512;
constexpr int row_counts[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512};

struct Way {
  const char* name;
  Algorithm algorithm;
  bool at_owner, ahead;
  int most;
};
constexpr Way ways[] = {{"one-shot", Algorithm::one_shot, false, false, 256},
                        {"one-shot, pushed ahead", Algorithm::one_shot, false, true, 256},
                        {"two-shot, residual at owner", Algorithm::two_shot, true, false, 512},
                        {"two-shot, residual everywhere", Algorithm::two_shot, false, false, 512}};

enum class Output { bf16, fp8, fp4 };
constexpr const char* output_names[] = {"bf16", "fp8", "fp4"};

struct Buffers {
  DeviceBuffer parts, residual, weight, out, scales, global_scale;

  NormCudaOutput as(Output output) {
    if (output == Output::bf16) return Bf16Rows{out.as<Bf16>(), hidden};
    if (output == Output::fp8) return E4m3Rows{out.as<std::uint8_t>(), scales.as<float>()};
    return Nvfp4Rows{out.as<std::uint8_t>(), scales.as<std::uint8_t>(), global_scale.as<float>()};
  }
};
Buffers buffers_of(int rank) {
  std::mt19937 random(static_cast<unsigned>(rank));
  const std::size_t count = std::size_t{most_rows} * hidden;
  std::vector<float> parts(count);
  for (float& part : parts) part = std::normal_distribution<float>()(random);
  return {
      bench::copied(parts),     bench::zeroed(count * 4), bench::filled<Bf16>(hidden, bench::normal, random),
      bench::zeroed(count * 2), bench::zeroed(count / 4), bench::copied(std::vector<float>{512.0f})};
}

struct Call {
  const Way& way;
  Output output;
  int rows;
};

void queue(const PeerGroup& group, Buffers& buffers, const Call& call, cudaStream_t stream) {
  const auto& [way, output, rows] = call;
  if (way.ahead) bench::require(push_parts_cuda(group, buffers.parts.as<float>(), rows, stream));
  bench::require(all_reduce_norm_cuda(group,
                                      {.parts = way.ahead ? nullptr : buffers.parts.as<float>(),
                                       .residual = buffers.residual.as<float>(),
                                       .weight = buffers.weight.as<Bf16>(),
                                       .residual_at_owner = way.at_owner,
                                       .out = buffers.as(output),
                                       .rows = rows,
                                       .hidden = hidden,
                                       .eps = 1e-5f,
                                       .algorithm = way.algorithm},
                                      stream));
}

void run_group(Output output, int members, std::vector<std::string>& lines) {
  std::vector<int> devices(static_cast<std::size_t>(members));
  std::iota(devices.begin(), devices.end(), 0);
  auto workspace = PeerWorkspace::make(Group{devices}, devices, {.most_rows = most_rows, .hidden = hidden});
  bench::require(workspace.status());
  std::vector<Buffers> buffers;
  for (const int device : devices) {
    const OnDevice on(device);
    load_all_reduce_norm_kernels(members);
    buffers.push_back(buffers_of(device));
  }
  for (const Way& way : ways) {
    for (const int rows : row_counts) {
      if (rows > way.most) continue;
      const std::vector<double> medians =
          bench::medians_of_ranks(members, rows >= 128 ? 16 : 64, [&](int rank, cudaStream_t stream) {
            queue((*workspace)->member(rank), buffers[static_cast<std::size_t>(rank)], {way, output, rows},
                  stream);
          });
      for (int rank = 0; rank < members; ++rank) bench::require((*workspace)->failure(rank));
      const double us = *std::max_element(medians.begin(), medians.end());
      const std::string what = output == Output::bf16
                                   ? way.name
                                   : std::string(way.name) + ", " + output_names[static_cast<int>(output)];
      std::printf("%d GPUs  %-36s %4d rows %8.2f us\n", members, what.c_str(), rows, us);
      std::fflush(stdout);
      char line[200];
      std::snprintf(line, sizeof line, "{\"gpus\": %d, \"what\": \"%s\", \"rows\": %d, \"us\": %.2f}",
                    members, what.c_str(), rows, us);
      lines.push_back(line);
    }
  }
  for (const int device : devices) {
    const OnDevice on(device);
    buffers[static_cast<std::size_t>(device)] = {};
  }
}

}  // namespace
}  // namespace nibble

int main(int count, char** arguments) {
  int output = 0;
  for (int i = 1; i + 1 < count; ++i) {
    if (std::strcmp(arguments[i], "--output") != 0) continue;
    while (output < 3 && std::strcmp(arguments[i + 1], nibble::output_names[output]) != 0) ++output;
    if (output < 3) continue;
    std::fprintf(stderr, "--output takes bf16, fp8 or fp4, not %s\n", arguments[i + 1]);
    return 2;
  }
  return nibble::bench::run_on_several_gpus(
      count, arguments, [&](int members, std::vector<std::string>& lines) {
        nibble::run_group(static_cast<nibble::Output>(output), members, lines);
      });
}
