#include "ops/all_reduce_norm/norm_codes.h"

#include <string>

#include "formats/nvfp4.h"

namespace nibble {

Status check_norm_codes(const E4m3Rows& codes, int, int) {
  if (codes.codes != nullptr && codes.scales != nullptr) return {};
  return invalid_argument("all_reduce_norm to FP8 needs room for codes and for a float32 scale a row");
}

Status check_norm_codes(const Nvfp4Rows& codes, int rows, int hidden) {
  if (hidden % nvfp4_block != 0) {
    return invalid_argument(
        "all_reduce_norm to FP4 takes a multiple of 16 columns, which share a scale, not " +
        std::to_string(hidden));
  }
  if (codes.codes == nullptr || codes.scales == nullptr)
    return invalid_argument("all_reduce_norm to FP4 needs room for codes and for a scale each 16 columns");
  if (codes.global_scales == nullptr) {
    return invalid_argument(
        "all_reduce_norm to FP4 needs a global scale, usually 448 * 6 / amax or a checkpoint's 1 / "
        "input_scale");
  }
  if (codes.global_count != 1 && codes.global_count != rows) {
    return invalid_argument("all_reduce_norm to FP4 takes one global scale or one a row, which are " +
                            std::to_string(rows) + ", not " + std::to_string(codes.global_count));
  }
  return {};
}

}  // namespace nibble
