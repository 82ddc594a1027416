// Room for rows that are rounded to FP8 on a GPU (ops/linear/cuda/rounded_rows.h), which a plan counts too.
#pragma once

namespace nibble {

// Codes of a row of so many columns: whole blocks of 128.
constexpr int rounded_row_bytes(int cols) { return (cols + 127) / 128 * 128; }

}  // namespace nibble
