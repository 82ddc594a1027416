#include <algorithm>

#include "ops/gated_delta/delta_kernels.h"
#include "ops/gated_delta/gated_delta.h"

namespace nibble {
namespace {

// Channels whose sums stay near while the taps pass over them.
constexpr int block = 256;

// Input of the sequence's position, of this step or an earlier one.
const float* input_at(const ShortConvolutionArgs& args, const StateRows& rows, const DeltaState& state,
                      int position) {
  const std::int64_t channels = args.layer.shape.channels();
  if (position >= rows.first_position)
    return args.x + (rows.row_begin + position - rows.first_position) * channels;
  return state.inputs + input_row(position, args.layer.shape.kept_inputs()) * channels;
}

void convolve(const DeltaKernels& kernels, const ShortConvolutionArgs& args, const StateRows& rows, int row) {
  const DeltaShape& shape = args.layer.shape;
  const std::int64_t channels = shape.channels();
  const DeltaState state = args.layer.slot(rows.slot);
  const int position = rows.first_position + row - rows.row_begin;
  const int first_tap = std::max(0, shape.taps - 1 - position);
  float* out = args.out + row * channels;
  for (std::int64_t begin = 0; begin < channels; begin += block) {
    const std::int64_t end = std::min(begin + block, channels);
    for (int tap = first_tap; tap < shape.taps; ++tap) {
      const float* x = input_at(args, rows, state, position - (shape.taps - 1) + tap);
      const float* weight = args.weight + tap * channels;
      if (tap == first_tap) {
        for (std::int64_t c = begin; c < end; ++c) out[c] = weight[c] * x[c];
      } else {
        for (std::int64_t c = begin; c < end; ++c) out[c] += weight[c] * x[c];
      }
    }
    kernels.silu(out + begin, static_cast<int>(end - begin));
  }
}

// The step's last inputs, for the next one; and those before each border that is kept.
void keep_inputs(const ShortConvolutionArgs& args, const StateRows& rows) {
  const DeltaShape& shape = args.layer.shape;
  const int kept = shape.kept_inputs();
  const std::int64_t channels = shape.channels();
  const DeltaState state = args.layer.slot(rows.slot);
  for (const BorderState& border : rows.kept) {
    float* inputs = args.layer.snapshot(border.slot).inputs;
    for (int position = std::max(0, border.position - shape.taps); position < border.position; ++position)
      std::copy_n(input_at(args, rows, state, position), channels,
                  inputs + input_row(position, kept) * channels);
  }
  for (int i = std::max(0, rows.row_count - kept); i < rows.row_count; ++i) {
    std::copy_n(args.x + (rows.row_begin + i) * channels, channels,
                state.inputs + input_row(rows.first_position + i, kept) * channels);
  }
}

}  // namespace

void short_convolution(OpContext& context, const ShortConvolutionArgs& args) {
  int all = 0;
  for (const StateRows& rows : args.sequences) all = std::max(all, rows.row_begin + rows.row_count);
  context.threads.parallel_for(all, [&](int begin, int end) {
    for (const StateRows& rows : args.sequences) {
      const int last = std::min(end, rows.row_begin + rows.row_count);
      for (int row = std::max(begin, rows.row_begin); row < last; ++row)
        convolve(context.deltas, args, rows, row);
    }
  });
  context.threads.parallel_for(static_cast<int>(args.sequences.size()), [&](int begin, int end) {
    for (int i = begin; i < end; ++i) keep_inputs(args, args.sequences[static_cast<std::size_t>(i)]);
  });
}

}  // namespace nibble
