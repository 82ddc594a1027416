#include "runtime/cuda/decode_graphs.h"

#include <algorithm>

#include "base/check.h"

namespace nibble {
namespace {

std::vector<int> graph_sizes(int max_sequences) {
  std::vector<int> sizes;
  for (int size = 1; size < max_sequences; size += size < 8 ? 1 : 8) sizes.push_back(size);
  sizes.push_back(max_sequences);
  return sizes;
}

}  // namespace

StepShape decode_shape(int sequences) {
  return {.rows = sequences,
          .sequences = sequences,
          .logit_rows = sequences,
          .one_row_each = true,
          .most_rows = sequences};
}

Status DecodeGraphs::capture(CudaModel& model, const StepInputs& inputs, float* logits, int max_sequences,
                             LaunchCounts& launches, cudaStream_t stream) {
  for (const int size : graph_sizes(std::min(max_sequences, attention_max_sequences))) {
    CudaForwardInput input = inputs.forward_input(decode_shape(size));
    // One run of attention: a step whose splits need more does not run in a graph.
    const int one_run[] = {size};
    input.attention_runs = one_run;
    for (const bool short_contexts : {false, true}) {
      if (short_contexts && size > attention_short_contexts) continue;
      input.short_contexts = short_contexts;
      NIBBLE_RETURN_IF_ERROR(capture(model, input, logits, launches, stream));
    }
  }
  return {};
}

Status DecodeGraphs::capture(CudaModel& model, const CudaForwardInput& input, float* logits,
                             LaunchCounts& launches, cudaStream_t stream) {
  launches = {};
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const Status queued = model.forward(input, logits, stream);
  cudaGraph_t captured = nullptr;
  cuda_check(cudaStreamEndCapture(stream, &captured));
  const CudaGraph graph(captured);
  NIBBLE_RETURN_IF_ERROR(queued);
  cudaGraphExec_t exec = nullptr;
  cuda_check(cudaGraphInstantiate(&exec, graph.get(), 0));
  graphs_.push_back({input.sequences, input.short_contexts, CudaGraphExec(exec), launches});
  return {};
}

void DecodeGraphs::Captured::launch(cudaStream_t stream) const {
  cuda_check(cudaGraphLaunch(exec.get(), stream));
}

int DecodeGraphs::size_for(int sequences) const {
  for (const Captured& graph : graphs_) {
    if (graph.size >= sequences) return graph.size;
  }
  return 0;
}

const DecodeGraphs::Captured& DecodeGraphs::graph_of(int size, bool short_contexts) const {
  const Captured* found = nullptr;
  for (const Captured& graph : graphs_) {
    if (graph.size == size && (short_contexts || !graph.short_contexts)) found = &graph;
  }
  NIBBLE_CHECK(found != nullptr, "a graph of that size was captured");
  return *found;
}

}  // namespace nibble
