// Weights in blocks by inputs in eight bits, by AVX-512 with VNNI. Words of weights are transposed once for
// all inputs, so that four k of sixteen lanes meet in one register; then an input takes eight products, which
// need no sums across lanes, and three to five instructions more: 11 cycles for 512 weights (Zen 4). For few
// inputs lanes are sixteen steps of a row, which come in as they lie in memory. For more they are sixteen
// rows, whose lines take longer to bring together; but then four codes of an input go to all lanes, and
// totals need not be added up across them.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "ops/linear/int8_inputs.h"
#include "ops/linear/simd512.h"
#include "ops/linear/step_rows.h"
#include "ops/linear/tile_rows512.h"

namespace nibble {
namespace {

constexpr int group_steps = Int8Group::steps;
constexpr int few_inputs = 6;  // at most
// Their sums, their totals and a step's words fill three quarters of the registers.
constexpr int inputs_at_once = Int8Inputs::block;
constexpr int chunk_steps = 48;   // of a tile: in the first-level cache with a block of inputs
constexpr int most_inputs = 128;  // that share a tile's transposing
static_assert(most_inputs % inputs_at_once == 0 && chunk_steps % 16 == 0 && chunk_steps % group_steps == 0);
// How far ahead few inputs' weights are asked for: by one input rows go by faster.
constexpr int steps_ahead(WeightLines lines, int inputs, int step_bytes) {
  return bytes_ahead_of(lines, (inputs == 1 ? 512 : 256) * step_bytes) / step_bytes;
}
// And how far apart the lines are by which a processor is led; by the most inputs a row takes longer than it
// looks ahead.
constexpr int led_apart(int inputs, int step_bytes) {
  return inputs < few_inputs ? group_steps * step_bytes : each_line;
}

// E8M0 scales of sixteen lanes.
struct alignas(64) LaneScales {
  __m512 factors;
  __m128i bytes;
  bool plain;  // none is 0 or 255, whose factors are not theirs

  NIBBLE_512 void set(__m128i scales, bool are_plain) {
    factors = plain_factors(scales);
    bytes = scales;
    plain = are_plain;
  }
};

// A format turns transposed bytes of a step, that is a word of each lane, into codes: codes[w] is word w as
// Int8Group has it, unsigned. A tile keeps what `kept` makes of them, once for all inputs, and
// `codes_of_kept` does the rest.
struct Mxfp4Words {
  static constexpr int step_bytes = mxfp4_block_bytes, word_count = 4;
  static constexpr bool scaled = true;
  __m512i doubles;

  // A permutation looks at six bits of a byte, a code has four: what else is there does not matter.
  NIBBLE_512 Mxfp4Words() {
    static_assert(int8_mxfp4_added == 12);
    doubles =
        _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  }
  NIBBLE_512 void decode(const __m512i* words, __m512i (&codes)[8]) const {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      codes[2 * i] = _mm512_permutexvar_epi8(words[i], doubles);
      codes[2 * i + 1] = _mm512_permutexvar_epi8(_mm512_srli_epi16(words[i], 4), doubles);
    }
  }
  NIBBLE_512 static __m512i kept(__m512i word) { return word; }
  NIBBLE_512 void codes_of_kept(const __m512i* words, __m512i (&codes)[8]) const { decode(words, codes); }
};

struct Q8Words {
  static constexpr int step_bytes = q8_block, word_count = 8;
  static constexpr bool scaled = true;

  NIBBLE_512 void decode(const __m512i* words, __m512i (&codes)[8]) const {
    static_assert(int8_q8_added == 128);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) codes[i] = kept(words[i]);
  }
  NIBBLE_512 static __m512i kept(__m512i word) {
    return _mm512_xor_si512(word, _mm512_set1_epi8(static_cast<char>(0x80)));
  }
  NIBBLE_512 void codes_of_kept(const __m512i* words, __m512i (&codes)[8]) const {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) codes[i] = words[i];
  }
};

// Bytes [from, from + 4 * words) of a part of a row that has `bytes` left; others are zeros.
constexpr std::uint32_t words_within(int bytes, int from, int words) {
  return (1u << std::clamp((bytes - from) / 4, 0, words)) - 1;
}

// Few inputs. A lane is a step of a row, sixteen steps at a time: two groups, whose sums are added to the
// places one after the other.
constexpr int span_steps = 2 * group_steps;
constexpr int spans_of(int steps) { return (steps + span_steps - 1) / span_steps; }
// Where a step lies: how the four parts of registers leave transpose_parts.
constexpr int span_lane(int step) { return step % 4 * 4 + step / 4; }

// A span of an input, in the order of span_lane.
struct alignas(64) SpanInput {
  std::int8_t codes[Int8Group::words][64];
  float scales[span_steps];
  std::int32_t start[span_steps];
};
static_assert(sizeof(SpanInput) <= span_steps * dot_step * sizeof(Bf16), "what prepared_bytes gives");

// Of the input's groups, in the order of int8_lane.
NIBBLE_512 void join_groups(const Int8Group (&groups)[2], SpanInput& out) {
  static constexpr auto order = [] {
    std::array<std::int32_t, span_steps> from{};
    for (int step = 0; step < span_steps; ++step)
      from[static_cast<std::size_t>(span_lane(step))] =
          step / group_steps * group_steps + int8_lane(step % group_steps);
    return from;
  }();
  const __m512i lanes = _mm512_loadu_si512(order.data());
  const auto join = [&](const void* first, const void* second, void* to) NIBBLE_512 {
    const __m512i both =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_load_si256(static_cast<const __m256i*>(first))),
                           _mm256_load_si256(static_cast<const __m256i*>(second)), 1);
    _mm512_store_si512(to, _mm512_permutexvar_epi32(lanes, both));
  };
  for (int word = 0; word < Int8Group::words; ++word)
    join(groups[0].codes[word], groups[1].codes[word], out.codes[word]);
  join(groups[0].scales, groups[1].scales, out.scales);
  join(groups[0].start, groups[1].start, out.start);
}

// A span of a row.
struct Span {
  __m512i codes[Int8Group::words];
  LaneScales scales;
};

// The span of a row that begins with step `at` of the matrix; of one that is not full `steps` are there.
template <bool full, class Words>
NIBBLE_512 inline void read_span(const Words& format, const StepRows& matrix, std::int64_t at, int steps,
                                 Span& span) {
  constexpr int line_count = span_steps * Words::step_bytes / 64;
  const std::uint8_t* const from = matrix.codes + at * Words::step_bytes;
  __m512i lines[line_count], words[Words::word_count];
#pragma GCC unroll 8
  for (int i = 0; i < line_count; ++i) {
    lines[i] = full ? _mm512_loadu_si512(from + 64 * i)
                    : _mm512_maskz_loadu_epi32(
                          static_cast<__mmask16>(words_within(steps * Words::step_bytes, 64 * i, 16)),
                          from + 64 * i);
  }
  if constexpr (line_count == 4) {  // a line has four steps
    transpose_parts(lines, words);
  } else {  // or two: first those parts come together that have the same sixteen k
    __m512i lower[4], upper[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      lower[i] = _mm512_shuffle_i32x4(lines[2 * i], lines[2 * i + 1], 0x88);
      upper[i] = _mm512_shuffle_i32x4(lines[2 * i], lines[2 * i + 1], 0xdd);
    }
    transpose_parts(lower, words);
    transpose_parts(upper, words + 4);
  }
  format.decode(words, span.codes);
  const __m128i scales = full ? part_at(matrix.scales + at) : read_scales(matrix.scales + at, steps);
  const __m128i shifted = _mm_sub_epi8(scales, _mm_set1_epi8(1));  // 0 and 255 become the largest
  span.scales.set(
      _mm_shuffle_epi8(scales, _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)),
      _mm_cmpge_epu8_mask(shifted, _mm_set1_epi8(static_cast<char>(254))) == 0);
}

// The steps' sums of a span with an input, before the row's scales: in so many chains.
template <int chains>
NIBBLE_512 inline __m512 span_sums(const Span& span, const SpanInput& input) {
  __m512i sums[2] = {_mm512_load_si512(input.start), _mm512_setzero_si512()};
#pragma GCC unroll 8
  for (int word = 0; word < Int8Group::words; ++word) {
    __m512i& sum = sums[word % chains];
    sum = _mm512_dpbusd_epi32(sum, span.codes[word], _mm512_load_si512(input.codes[word]));
  }
  if constexpr (chains == 2) sums[0] = _mm512_add_epi32(sums[0], sums[1]);
  return _mm512_mul_ps(_mm512_cvtepi32_ps(sums[0]), _mm512_load_ps(input.scales));
}

// Lanes 4p and 4p + 1 of the totals are those of places p and p + 4; the others mean nothing.
NIBBLE_512 inline __m512 add_to_places(__m512 totals, __m512 sums) {
  return _mm512_add_ps(_mm512_add_ps(totals, sums), _mm512_permute_ps(sums, 0x0e));
}

// The span is read once more, since one that is handed over would have to be stored, whether it is or not.
template <bool full, class Words>
[[gnu::noinline]] NIBBLE_512 __m512 add_span_with_care(const Words& format, const StepRows& matrix,
                                                       std::int64_t at, int steps, const SpanInput& input,
                                                       __m512 totals) {
  Span span;
  read_span<full>(format, matrix, at, steps, span);
  return add_to_places(totals, scaled_with_care(span_sums<1>(span, input), span.scales.bytes));
}

// Adds the steps' sums of the span that begins with step `at` with `count` inputs to their totals. One input
// alone would wait for its chain.
template <bool full, int count, class Words>
NIBBLE_512 inline void add_span(const Words& format, const StepRows& matrix, std::int64_t at, int steps,
                                const SpanInput* inputs, __m512 (&totals)[count]) {
  constexpr int chains = count == 1 ? 2 : 1;
  Span span;
  read_span<full>(format, matrix, at, steps, span);
  if (span.scales.plain) [[likely]] {
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      totals[i] =
          add_to_places(totals[i], _mm512_mul_ps(span_sums<chains>(span, inputs[i]), span.scales.factors));
    }
  } else {
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i)
      totals[i] = add_span_with_care<full>(format, matrix, at, steps, inputs[i], totals[i]);
  }
}

// The total of a row, from those of its places.
NIBBLE_512 inline float add_places(__m512 totals) {
  const __m512 four = _mm512_add_ps(totals, _mm512_permute_ps(totals, 0xb1));
  const __m512 two = _mm512_add_ps(four, _mm512_shuffle_f32x4(four, four, 0x4e));
  return _mm512_cvtss_f32(_mm512_add_ps(two, _mm512_shuffle_f32x4(two, two, 0xb1)));
}

template <int count, class Words>
NIBBLE_512 void multiply_few(const Words& format, const StepRows& matrix, int begin, int end,
                             const SpanInput* inputs, const TotalsSink& store) {
  const int steps = static_cast<int>(matrix.row_steps), whole = steps / span_steps;
  TileTotals totals[count];
  const int far = steps_ahead(matrix.lines, count, Words::step_bytes);
  Ahead(matrix, begin * matrix.row_steps, Words::step_bytes).ask_for_all<Words, span_steps>(far);
  for (int row = begin; row < end; row += tile_rows) {
    const int rows = std::min(tile_rows, end - row);
    Ahead ahead(matrix, row * matrix.row_steps + far, Words::step_bytes);
    for (int r = 0; r < rows; ++r) {
      std::int64_t at = (row + r) * matrix.row_steps;
      const SpanInput* x = inputs;
      __m512 places[count];
#pragma GCC unroll 8
      for (int i = 0; i < count; ++i) places[i] = _mm512_setzero_ps();
      for (int g = 0; g < whole; ++g, at += span_steps, x += count) {
        ahead.ask_for<Words, span_steps, led_apart(count, Words::step_bytes)>();
        add_span<true>(format, matrix, at, span_steps, x, places);
      }
      if (whole * span_steps < steps)
        add_span<false>(format, matrix, at, steps - whole * span_steps, x, places);
      for (int i = 0; i < count; ++i) totals[i][r] = add_places(places[i]);
    }
    for (int i = 0; i < count; ++i) store(row, i, totals[i]);
  }
}

// More inputs. A lane is a row of a tile.

template <class Words>
struct alignas(64) TileStep {
  __m512i words[Words::word_count];
  LaneScales scales;
  bool moderate;  // its scales, as TileStepScales has it
};

// The line of 64 bytes of each row that begins with a step: word w of all rows. Past a row's end are zeros.
NIBBLE_512 inline void read_tile_line(const StepRows& matrix, const TileRows& tile, int step_bytes, int step,
                                      __m512i (&words)[16]) {
  const int left = static_cast<int>(matrix.row_steps - step) * step_bytes;
  const auto from = [&](int r) { return matrix.codes + (tile.first_steps[r] + step) * step_bytes; };
  if (left >= 64) [[likely]] {
#pragma GCC unroll 16
    for (int r = 0; r < tile_rows; ++r) words[r] = _mm512_loadu_si512(from(r));
  } else {
    const auto there = static_cast<__mmask16>(words_within(left, 0, 16));
#pragma GCC unroll 16
    for (int r = 0; r < tile_rows; ++r) words[r] = _mm512_maskz_loadu_epi32(there, from(r));
  }
  transpose_words(words);
}

// A tile's steps [from, from + count); `from` is a multiple of 16, and there is room for a multiple of 4.
template <class Words>
NIBBLE_512 inline void read_tile(const StepRows& matrix, const TileRows& tile, int from, int count,
                                 TileStep<Words>* out) {
  constexpr int line_steps = 64 / Words::step_bytes;
  TileStepScales scales;
  for (int step = 0; step < count; ++step) {
    if (step % 16 == 0) read_tile_scales(matrix, tile, from + step, std::min(16, count - step), scales);
    out[step].scales.set(part_at(scales.bytes[step % 16]), scales.plain);
    out[step].moderate = scales.moderate;
    if (step % line_steps != 0) continue;
    __m512i words[16];
    read_tile_line(matrix, tile, Words::step_bytes, from + step, words);
#pragma GCC unroll 16
    for (int w = 0; w < 16; ++w)
      _mm512_store_si512(out[step + w / Words::word_count].words + w % Words::word_count,
                         Words::kept(words[w]));
  }
}

// Whether no step's sum with any of the inputs leaves 2^-60 to 2^60, but for zeros: scales of 2^-60 to 2^40
// times whole numbers below 2^17.
NIBBLE_512 bool are_moderate(const Int8Inputs& inputs) {
  const __m256 least = _mm256_set1_ps(0x1p-60f), most = _mm256_set1_ps(0x1p40f);
  __mmask8 moderate = 0xff;
  const std::int64_t groups = std::int64_t{inputs.count} * inputs.groups;
  for (std::int64_t i = 0; i < groups; ++i) {
    const __m256 scales = _mm256_load_ps(inputs.first[i].scales);
    const __mmask8 within =
        _mm256_cmp_ps_mask(scales, least, _CMP_GE_OQ) & _mm256_cmp_ps_mask(scales, most, _CMP_LE_OQ);
    moderate &= within | _mm256_cmp_ps_mask(scales, _mm256_setzero_ps(), _CMP_EQ_OQ);
  }
  return moderate == 0xff;
}

// A step's sums with inputs [0, count), added to their totals. lane: of the step, in its group. A product of
// moderate factors is exact, so one multiply-add has the bits of both.
template <int count, class Words>
NIBBLE_512 inline void add_step(const Words& format, const TileStep<Words>& step, const Int8Group* inputs,
                                int lane, bool moderate, __m512 (&totals)[count]) {
  __m512i codes[Int8Group::words], sums[count];
  format.codes_of_kept(step.words, codes);
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) sums[i] = _mm512_set1_epi32(inputs[i].start[lane]);
#pragma GCC unroll 8
  for (int word = 0; word < Int8Group::words; ++word) {
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      std::int32_t four;
      std::memcpy(&four, inputs[i].codes[word][lane], sizeof four);
      sums[i] = _mm512_dpbusd_epi32(sums[i], codes[word], _mm512_set1_epi32(four));
    }
  }
  const auto scaled_sum = [&](int i) NIBBLE_512 {
    return _mm512_mul_ps(_mm512_cvtepi32_ps(sums[i]), _mm512_set1_ps(inputs[i].scales[lane]));
  };
  if (moderate && step.moderate) [[likely]] {
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i)
      totals[i] = _mm512_fmadd_ps(scaled_sum(i), step.scales.factors, totals[i]);
  } else {
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      totals[i] =
          _mm512_add_ps(totals[i], step.scales.plain ? _mm512_mul_ps(scaled_sum(i), step.scales.factors)
                                                     : scaled_with_care(scaled_sum(i), step.scales.bytes));
    }
  }
}

// By the places among eight steps whose totals they are.
using PlaceTotals = __m512[group_steps];

// Some steps of a tile.
template <class Words>
struct TileChunk {
  const TileStep<Words>* first;
  int steps;
  bool begins;  // the rows: totals begin at zero
};

// A chunk of a tile by a block of inputs, from a group of theirs on.
template <int count, class Words>
NIBBLE_512 void multiply_chunk(const Words& format, const TileChunk<Words>& chunk, const Int8Group* inputs,
                               bool moderate, Ahead* ahead, PlaceTotals* totals) {
  for (int place = 0; place < group_steps; ++place) {
    __m512 of_place[count];
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) of_place[i] = chunk.begins ? _mm512_setzero_ps() : totals[i][place];
    const Int8Group* x = inputs;
    for (int step = place; step < chunk.steps; step += group_steps, x += count) {
      if (ahead != nullptr) ahead->ask_for<Words, tile_rows>();
      add_step(format, chunk.first[step], x, int8_lane(place), moderate, of_place);
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) totals[i][place] = of_place[i];
  }
}

template <class Words>
NIBBLE_512 void multiply_more(const Words& format, const StepRows& matrix, int begin, int end,
                              const Int8Inputs& inputs, const TotalsSink& store) {
  const int steps = static_cast<int>(matrix.row_steps);
  const bool moderate = are_moderate(inputs);
  TileStep<Words> tile[chunk_steps];
  PlaceTotals places[most_inputs];
  for (int row = begin; row < end; row += tile_rows) {
    const TileRows rows(matrix, row, std::min(tile_rows, end - row));
    for (int first = 0; first < inputs.count; first += most_inputs) {
      const int count = std::min(most_inputs, inputs.count - first);
      Ahead ahead(matrix, (row + 2 * tile_rows) * matrix.row_steps, Words::step_bytes);
      for (int from = 0; from < steps; from += chunk_steps) {
        const int length = std::min(chunk_steps, steps - from);
        read_tile(matrix, rows, from, length, tile);
        for (int i = 0; i < count; i += inputs_at_once) {
          with_count<1, inputs_at_once>(inputs.block_size(first + i), [&](auto together) {
            multiply_chunk<together>(format, TileChunk<Words>{tile, length, from == 0},
                                     inputs.group(first + i, from / group_steps), moderate,
                                     i == 0 ? &ahead : nullptr, places + i);
          });
        }
      }
      for (int i = 0; i < count; ++i) {
        const PlaceTotals& t = places[i];
        const auto four = [&](int a) NIBBLE_512 {
          return _mm512_add_ps(_mm512_add_ps(t[a], t[a + 4]), _mm512_add_ps(t[a + 2], t[a + 6]));
        };
        alignas(64) TileTotals totals;
        _mm512_store_ps(totals, _mm512_add_ps(four(0), four(1)));
        store(row, first + i, totals);
      }
    }
  }
}

template <class Words>
NIBBLE_512 void multiply_rows_of(const StepRows& matrix, int begin, int end, const DotInputs& inputs,
                                 const TotalsSink& store) {
  const int n = inputs.rows.count;
  const Words format;
  if (n > few_inputs) return multiply_more(format, matrix, begin, end, Int8Inputs(inputs), store);
  with_count<1, few_inputs>(n, [&](auto count) {
    multiply_few<count>(format, matrix, begin, end, reinterpret_cast<const SpanInput*>(inputs.prepared),
                        store);
  });
}

}  // namespace

void avx512_int8_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end) {
  if (inputs.rows.count > few_inputs) return avx2_int8_prepare(matrix, inputs, begin, end);
  const int n = inputs.rows.count, steps = inputs.rows.cols / dot_step, spans = spans_of(steps);
  NIBBLE_CHECK(inputs.rows.cols % dot_step == 0);
  SpanInput* const prepared = reinterpret_cast<SpanInput*>(inputs.prepared);
  for (int i = begin; i < end; ++i) {
    for (int g = 0; g < spans; ++g) {
      Int8Group groups[2];
      for (int half = 0; half < 2; ++half) {
        const int first = g * span_steps + half * group_steps;
        avx2_encode_int8_group(matrix, inputs.rows[i] + first * dot_step,
                               std::clamp(steps - first, 0, group_steps), groups[half]);
      }
      join_groups(groups, prepared[g * n + i]);
    }
  }
}

void avx512_int8_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                          const TotalsSink& store) {
  if (const auto* mxfp4 = std::get_if<Mxfp4Checkpoint>(&matrix)) {
    multiply_rows_of<Mxfp4Words>(steps_of(*mxfp4, inputs.lines), begin, end, inputs, store);
  } else if (const auto* q8 = std::get_if<Q8Matrix>(&matrix)) {
    multiply_rows_of<Q8Words>(steps_of(*q8, inputs.lines), begin, end, inputs, store);
  }
}

}  // namespace nibble
