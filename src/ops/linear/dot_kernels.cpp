#include "ops/linear/dot_kernels.h"

#include <algorithm>

#include "base/check.h"
#include "ops/linear/dot_amx.h"
#include "ops/linear/dot_avx512.h"
#include "ops/linear/dot_tile_avx2.h"
#include "ops/linear/dot_tile_avx512.h"
#include "ops/linear/dot_tile_scalar.h"
#include "ops/linear/float_inputs.h"
#include "ops/linear/int8_inputs.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace nibble {
namespace {

constexpr DotKernels kernels[] = {
    {"amx", amx_supported, amx_prepare, amx_multiply, avx512_int8_prepare, avx512_int8_multiply},
    {"avx512_bf16", avx512_bf16_supported, avx512_bf16_prepare, avx512_bf16_multiply, avx512_int8_prepare,
     avx512_int8_multiply},
    {"avx512_vnni", avx512_vnni_supported, avx512_vnni_prepare, avx512_vnni_multiply, avx512_int8_prepare,
     avx512_int8_multiply},
    {"avx512", avx512_supported, prepare_float_inputs, avx512_multiply, avx2_int8_prepare,
     avx2_int8_multiply},
    {"avx2", avx2_supported, avx2_prepare, avx2_multiply, avx2_int8_prepare, avx2_int8_multiply},
    {"scalar", scalar_supported, prepare_float_inputs, scalar_multiply, scalar_int8_prepare,
     scalar_int8_multiply},
};

// The compiler does not know that arithmetic depends on the control word; the kernels' code stays on its side
// of the changes because it is reached through a pointer.
class FlushSubnormals {
 public:
#if defined(__SSE2__)
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | flush_results | operands_are_zero); }
  ~FlushSubnormals() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned flush_results = 0x8000, operands_are_zero = 0x0040;
  unsigned before_;
#endif
};

// Inputs that do not become codes are bfloat16, if not any float.
DotInputs as_floats(DotInputs inputs) {
  inputs.values = beside_bf16(inputs.values);
  return inputs;
}

}  // namespace

std::size_t prepared_bytes(int cols, int count) {
  const auto round_up = [](int n, int to) {
    return static_cast<std::size_t>(n + to - 1) / static_cast<std::size_t>(to) * static_cast<std::size_t>(to);
  };
  // As floats in whole groups of sixteen steps; others take less.
  return round_up(count, input_group) * round_up(cols, 16 * dot_step) * sizeof(float);
}

void prepare_rows(const DotKernels& chosen, const DenseMatrix& matrix, const DotInputs& inputs, int begin,
                  int end) {
  if (takes_int8(matrix, inputs)) return chosen.prepare_int8(matrix, inputs, begin, end);
  chosen.prepare(matrix, as_floats(inputs), begin, end);
}

void multiply_rows(const DotKernels& chosen, const DenseMatrix& matrix, int begin, int end,
                   const DotInputs& inputs, const TotalsSink& store) {
  NIBBLE_CHECK(begin % range_rows == 0 && end <= matrix_rows(matrix));
  NIBBLE_CHECK(inputs.rows.cols == matrix_cols(matrix));
  const FlushSubnormals mode;
  if (takes_int8(matrix, inputs)) return chosen.multiply_int8(matrix, begin, end, inputs, store);
  chosen.multiply(matrix, begin, end, as_floats(inputs), store);
}

std::span<const DotKernels> dot_kernels() { return kernels; }

const DotKernels& best_dot_kernels() {
  for (const DotKernels& each : kernels) {
    if (each.supported()) return each;
  }
  NIBBLE_CHECK(false, "the scalar kernels run anywhere");
  return kernels[0];
}

const DotKernels* find_dot_kernels(std::string_view name) {
  for (const DotKernels& each : kernels) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

}  // namespace nibble
