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
  return {.rows = sequences, .sequences = sequences, .logit_rows = sequences, .one_row_each = true};
}

Status DecodeGraphs::capture(CudaModel& model, const StepInputs& inputs, float* logits, int max_sequences,
                             cudaStream_t stream) {
  for (const int size : graph_sizes(std::min(max_sequences, attention_max_sequences))) {
    CudaForwardInput input = inputs.forward_input(decode_shape(size));
    // One run of attention: a step whose splits need more does not run in a graph.
    const int one_run[] = {size};
    input.attention_runs = one_run;
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const Status queued = model.forward(input, logits, stream);
    cudaGraph_t captured = nullptr;
    cuda_check(cudaStreamEndCapture(stream, &captured));
    const CudaGraph graph(captured);
    NIBBLE_RETURN_IF_ERROR(queued);
    cudaGraphExec_t exec = nullptr;
    cuda_check(cudaGraphInstantiate(&exec, graph.get(), 0));
    graphs_.push_back({size, CudaGraphExec(exec)});
  }
  return {};
}

int DecodeGraphs::size_for(int sequences) const {
  for (const Captured& graph : graphs_) {
    if (graph.size >= sequences) return graph.size;
  }
  return 0;
}

void DecodeGraphs::launch(int size, cudaStream_t stream) const {
  for (const Captured& graph : graphs_) {
    if (graph.size == size) return cuda_check(cudaGraphLaunch(graph.exec.get(), stream));
  }
  NIBBLE_CHECK(false, "a graph of that size was captured");
}

std::vector<int> DecodeGraphs::sizes() const {
  std::vector<int> sizes;
  for (const Captured& graph : graphs_) sizes.push_back(graph.size);
  return sizes;
}

}  // namespace nibble
