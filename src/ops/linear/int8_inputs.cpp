#include "ops/linear/int8_inputs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/linear/float_inputs.h"

namespace nibble {
namespace {

constexpr int group_values = Int8Group::steps * dot_step;

// Code k of a group's step.
template <class Group>
constexpr auto& code_of(Group& group, bool mxfp4, int step, int k) {
  const int lane = int8_lane(step);
  return mxfp4 ? group.codes[k / 8 * 2 + k % 2][lane][k % 8 / 2] : group.codes[k / 4][lane][k % 4];
}

// To nearest, ties to even, of at most 2^22: what the addition shifts out is rounded so.
std::int32_t nearest(float x) { return std::bit_cast<std::int32_t>(x + 0x1.8p23f) - 0x4b400000; }

// A step's codes, in their places. What is no number makes all of the step none.
void encode_step(const float* x, bool mxfp4, int step, Int8Group& group) {
  float bounded[dot_step], largest = 0;
  bool finite = true;
  for (int k = 0; k < dot_step; ++k) {
    bounded[k] = bounded_bf16_input(x[k]);
    const float magnitude = std::fabs(bounded[k]);
    finite = finite && magnitude < std::numeric_limits<float>::infinity();
    largest = magnitude > largest ? magnitude : largest;
  }
  const bool zero = !finite || largest == 0;
  const float to_codes = zero ? 0.0f : 127.0f / largest;
  std::int32_t codes[dot_step], sum = 0;
  for (int k = 0; k < dot_step; ++k) codes[k] = zero ? 0 : nearest(bounded[k] * to_codes);
  for (int k = 0; k < dot_step; ++k) {
    code_of(group, mxfp4, step, k) = static_cast<std::int8_t>(codes[k]);
    sum += codes[k];
  }
  // Weights of MXFP4 count in halves.
  group.scales[int8_lane(step)] =
      finite ? largest / (mxfp4 ? 254.0f : 127.0f) : std::numeric_limits<float>::quiet_NaN();
  group.start[int8_lane(step)] = -sum * (mxfp4 ? int8_mxfp4_added : int8_q8_added);
}

// The sum of a step's products, in units of the weights' smallest.
std::int32_t step_sum(const Mxfp4Checkpoint& matrix, std::int64_t block, const Int8Group& group, int step) {
  constexpr std::int8_t doubles[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const std::uint8_t* codes = matrix.blocks + block * mxfp4_block_bytes;
  std::int32_t sum = 0;
  for (int k = 0; k < dot_step; ++k) {
    const int code = k % 2 == 0 ? codes[k / 2] & 15 : codes[k / 2] >> 4;
    sum += doubles[code] * code_of(group, true, step, k);
  }
  return sum;
}
std::int32_t step_sum(const Q8Matrix& matrix, std::int64_t block, const Int8Group& group, int step) {
  const std::int8_t* codes = matrix.codes + block * q8_block;
  std::int32_t sum = 0;
  for (int k = 0; k < dot_step; ++k) sum += codes[k] * code_of(group, false, step, k);
  return sum;
}
std::int32_t step_sum(const Bf16Matrix&, std::int64_t, const Int8Group&, int) { return 0; }

constexpr const std::uint8_t* scales_of(const Bf16Matrix&) { return nullptr; }
template <class Matrix>
constexpr const std::uint8_t* scales_of(const Matrix& matrix) {
  return matrix.scales;
}

}  // namespace

void scalar_encode_int8_group(const DenseMatrix& matrix, const float* x, int steps, Int8Group& group) {
  const bool mxfp4 = std::holds_alternative<Mxfp4Checkpoint>(matrix);
  if (steps < Int8Group::steps) group = {};
  for (int step = 0; step < steps; ++step) encode_step(x + step * dot_step, mxfp4, step, group);
}

void prepare_int8_inputs(EncodeInt8Group encode, const DenseMatrix& matrix, const DotInputs& inputs,
                         int begin, int end) {
  const int cols = inputs.rows.cols;
  NIBBLE_CHECK(cols % dot_step == 0);
  const Int8Inputs prepared(inputs);
  for (int i = begin; i < end; ++i) {
    const float* x = inputs.rows[i];
    for (int first = 0, g = 0; first < cols; first += group_values, ++g) {
      encode(matrix, x + first, std::min(Int8Group::steps, (cols - first) / dot_step), prepared.at(i, g));
    }
  }
}

void scalar_int8_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end) {
  prepare_int8_inputs(scalar_encode_int8_group, matrix, inputs, begin, end);
}

void scalar_int8_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                          const TotalsSink& store) {
  const int count = inputs.rows.count, steps = inputs.rows.cols / dot_step;
  const Int8Inputs prepared(inputs);
  std::visit(
      [&](const auto& each) {
        for (int row = begin; row < end; row += tile_rows) {
          for (int i = 0; i < count; ++i) {
            TileTotals totals = {};
            for (int r = 0; r < std::min(tile_rows, end - row); ++r) {
              float places[Int8Group::steps] = {};
              for (int step = 0; step < steps; ++step) {
                const Int8Group& group = prepared.at(i, step / Int8Group::steps);
                const int at = step % Int8Group::steps;
                const std::int64_t block = static_cast<std::int64_t>(row + r) * steps + step;
                const std::uint8_t scale = scales_of(each)[block];
                const float sum =
                    static_cast<float>(step_sum(each, block, group, at)) * group.scales[int8_lane(at)];
                places[at] += scale == 0 ? sum * 0.5f * 0x1p-126f : sum * E8m0{scale}.to_float();
              }
              for (int apart = Int8Group::steps / 2; apart > 0; apart /= 2) {
                for (int at = 0; at < apart; ++at) places[at] += places[at + apart];
              }
              totals[r] = places[0];
            }
            store(row, i, totals);
          }
        }
      },
      matrix);
}

}  // namespace nibble
