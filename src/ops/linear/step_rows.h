// What the kernels share in which a lane is a step of K or a row: a matrix as rows of steps, asked for ahead
// of its use.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/linear/dot_kernels.h"

namespace nibble {

// A matrix as rows of steps.
struct StepRows {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
  std::int64_t row_steps = 0;
  WeightLines lines = WeightLines::each;
};
inline StepRows steps_of(const Bf16Matrix& matrix, WeightLines lines) {
  return {reinterpret_cast<const std::uint8_t*>(matrix.data), nullptr, matrix.cols / dot_step, lines};
}
inline StepRows steps_of(const Q8Matrix& matrix, WeightLines lines) {
  return {reinterpret_cast<const std::uint8_t*>(matrix.codes), matrix.scales, matrix.cols / dot_step, lines};
}
inline StepRows steps_of(const Mxfp4Checkpoint& matrix, WeightLines lines) {
  return {matrix.blocks, matrix.scales, matrix.cols / dot_step, lines};
}

// run(count) with a count from least to most that the compiler knows.
template <int least, int most, class Run>
void with_count(int count, const Run& run) {
  if (count == least) return run(std::integral_constant<int, least>());
  if constexpr (least < most) with_count<least + 1, most>(count, run);
}

// How far apart lines are that are asked for, in bytes.
inline constexpr int each_line = 64, over_pages = 256;
// How far ahead those are that go into the first-level cache: sooner ones would come late, later ones push
// out what has not been read yet (Zen 5; 8 to 11 KB are alike).
inline constexpr int near_bytes_ahead = 9216;
// And on a processor whose own prefetching brings lines into the second-level cache in time (Intel; 2 to 4 KB
// are alike).
inline constexpr int late_bytes_ahead = 3072;
// So many bytes, or what is so far ahead for those that go into the second-level cache.
constexpr int bytes_ahead_of(WeightLines lines, int second_level) {
  switch (lines) {
    case WeightLines::each_near: return near_bytes_ahead;
    case WeightLines::each_late: return late_bytes_ahead;
    case WeightLines::led:
    case WeightLines::each: break;
  }
  return second_level;
}

// Codes and scales that will be wanted, asked for in the order in which they lie, at the pace of their use:
// reading several rows at once, a processor's own prefetching reaches a quarter of the memory's speed (EPYC,
// Zen 4).
class Ahead {
 public:
  Ahead(const StepRows& matrix, std::int64_t step, int step_bytes)
      : codes_(first_line(matrix.codes + step * step_bytes)),
        scales_(matrix.scales == nullptr ? nullptr : matrix.scales + step),
        lines_(matrix.lines) {}

  // So many steps more; led_apart: how far apart lines are by which a processor is led.
  template <class Decoder, int steps, int led_apart = each_line>
  void ask_for() {
    constexpr int bytes = steps * Decoder::step_bytes;
    switch (lines_) {
      case WeightLines::led: ask<second_level, bytes, led_apart, Decoder::scaled>(); break;
      case WeightLines::each: ask<second_level, bytes, each_line, Decoder::scaled>(); break;
      case WeightLines::each_near:
      case WeightLines::each_late: ask<first_level, bytes, each_line, Decoder::scaled>(); break;
    }
    codes_ += bytes;
    if constexpr (Decoder::scaled) scales_ += steps;
  }
  // As many as `wanted` at once: those that the first ask_for of another begins behind.
  template <class Decoder, int steps>
  void ask_for_all(int wanted) {
    for (int asked = 0; asked < wanted; asked += steps) ask_for<Decoder, steps>();
  }

 private:
  // As __builtin_prefetch counts caches.
  static constexpr int second_level = 2, first_level = 3;

  template <int level, int bytes, int bytes_apart, bool scaled>
  void ask() const {
#pragma GCC unroll 16
    for (int line = 0; line < bytes; line += bytes_apart) __builtin_prefetch(codes_ + line, 0, level);
    if constexpr (scaled) __builtin_prefetch(scales_, 0, level);
  }
  // Of the lines over_pages apart. Asked for pairs' second lines alone, a processor makes nothing of them and
  // asks for none itself (Zen 4: 13 GB/s of MXFP4 by one eight-bit input, where first lines give 27).
  static const std::uint8_t* first_line(const std::uint8_t* at) {
    return at - reinterpret_cast<std::uintptr_t>(at) % over_pages;
  }

  const std::uint8_t* codes_;
  const std::uint8_t* scales_;
  WeightLines lines_;
};

}  // namespace nibble
