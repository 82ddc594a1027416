#include "runtime/cuda/decode_graphs.h"

#include <algorithm>

#include "base/check.h"

namespace nibble {
namespace {

std::vector<int> graph_sizes(int most_rows) {
  std::vector<int> sizes;
  for (int size = 1; size < most_rows; size += size < 8 ? 1 : 8) sizes.push_back(size);
  sizes.push_back(most_rows);
  return sizes;
}

}  // namespace

StepShape decode_shape(int rows, bool checks_drafts) {
  return {.rows = rows,
          .sequences = rows,
          .logit_rows = rows,
          .one_row_each = true,
          .checks_drafts = checks_drafts,
          .most_rows = rows};
}

Status DecodeGraphs::capture(const Forward& forward, const MostRows& most) {
  const std::vector<int> sizes = graph_sizes(std::min(most.all, attention_max_sequences));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const bool rows_may_be_drafts = sizes[i] > 1 && (i == 0 || sizes[i - 1] < most.with_drafts);
    for (const bool checks_drafts : {false, true}) {
      if (checks_drafts && !rows_may_be_drafts) continue;
      CudaForwardInput input = forward.inputs.forward_input(decode_shape(sizes[i], checks_drafts));
      // One run of attention: a step whose splits need more does not run in a graph.
      const int one_run[] = {sizes[i]};
      input.attention_runs = one_run;
      const int most_later = sizes[i] > attention_short_contexts ? attention_any_context
                                                                 : forward.model.heads().most_later_clusters;
      for (int later = attention_any_context; later <= most_later; ++later) {
        input.later_clusters = later;
        NIBBLE_RETURN_IF_ERROR(capture(forward, input));
      }
    }
  }
  return {};
}

Status DecodeGraphs::capture(const Forward& forward, const CudaForwardInput& input) {
  forward.launches = {};
  cuda_check(cudaStreamBeginCapture(forward.stream, cudaStreamCaptureModeThreadLocal));
  const Status queued = forward.model.forward(input, forward.logits, forward.stream);
  cudaGraph_t captured = nullptr;
  cuda_check(cudaStreamEndCapture(forward.stream, &captured));
  const CudaGraph graph(captured);
  NIBBLE_RETURN_IF_ERROR(queued);
  cudaGraphExec_t exec = nullptr;
  cuda_check(cudaGraphInstantiate(&exec, graph.get(), 0));
  graphs_.push_back(
      {{.rows = input.rows, .later_clusters = input.later_clusters, .checks_drafts = !input.settled},
       CudaGraphExec(exec),
       forward.launches});
  return {};
}

void DecodeGraphs::Captured::launch(cudaStream_t stream) const {
  cuda_check(cudaGraphLaunch(exec.get(), stream));
}

int DecodeGraphs::size_for(int rows) const {
  for (const Captured& graph : graphs_) {
    if (graph.step.rows >= rows) return graph.step.rows;
  }
  return 0;
}

const DecodeGraphs::Captured* DecodeGraphs::find(Step step) const {
  if (step.rows > attention_short_contexts) step.later_clusters = attention_any_context;
  const auto found =
      std::find_if(graphs_.begin(), graphs_.end(), [&](const Captured& graph) { return graph.step == step; });
  return found == graphs_.end() ? nullptr : &*found;
}

}  // namespace nibble
