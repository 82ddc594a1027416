#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "comm/collectives.h"
#include "formats/e4m3_row.h"
#include "formats/nvfp4.h"
#include "ops/all_reduce_norm/all_reduce_norm.h"
#include "ops/row/row_kernels.h"

namespace nibble {
namespace {

Status check_output(float* const&, const AllReduceNormArgs&) { return {}; }
Status check_output(const E4m3Rows& out, const AllReduceNormArgs& args) {
  return check_norm_codes(out, args.rows, args.hidden);
}
Status check_output(const Nvfp4Rows& out, const AllReduceNormArgs& args) {
  NIBBLE_RETURN_IF_ERROR(check_norm_codes(out, args.rows, args.hidden));
  for (int i = 0; i < out.global_count; ++i)
    NIBBLE_RETURN_IF_ERROR(check_nvfp4_global_scale(out.global_scales[i]));
  return {};
}

Status check(const Communicator& communicator, const AllReduceNormArgs& args) {
  if (args.hidden < 8 || args.hidden % 8 != 0) {
    return invalid_argument("all_reduce_norm takes a multiple of 8 columns, not " +
                            std::to_string(args.hidden));
  }
  if (args.rows > 0 && args.weight == nullptr && args.residual == nullptr)
    return invalid_argument("all_reduce_norm has nothing to do without a residual and without a weight");
  if (args.rows > 0 && args.weight != nullptr)
    NIBBLE_RETURN_IF_ERROR(std::visit([&](const auto& out) { return check_output(out, args); }, args.out));
  const std::size_t row_bytes = static_cast<std::size_t>(args.hidden) * sizeof(float);
  if (row_bytes > communicator.slot_bytes()) {
    return invalid_argument("a row of " + std::to_string(args.hidden) +
                            " columns does not fit into slots of " +
                            std::to_string(communicator.slot_bytes()) +
                            " bytes; make the group with at least " + std::to_string(row_bytes));
  }
  return {};
}

void write_codes(const E4m3Rows& out, std::size_t row, std::span<const float> norm) {
  out.scales[row] = e4m3_row_codes(norm, out.codes + row * norm.size());
}
void write_codes(const Nvfp4Rows& out, std::size_t row, std::span<const float> norm) {
  const std::size_t block = row * norm.size() / nvfp4_block;
  nvfp4_encode(norm, out.global_scales[out.global_count == 1 ? 0 : row],
               out.codes + block * nvfp4_block_bytes, out.scales + block);
}

// What is done to a row once its sum is there; the sum is lost.
void finish_row(const OpContext& context, const AllReduceNormArgs& args, std::size_t row, float* sum) {
  const int hidden = args.hidden;
  const std::size_t at = row * static_cast<std::size_t>(hidden);
  float* const x = args.residual == nullptr ? sum : args.residual + at;
  const float squares = context.rows.add_and_square(x, args.residual == nullptr ? nullptr : sum, hidden);
  if (args.weight == nullptr) return;
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(hidden) + args.eps);
  const auto norm = [&](bool narrow, float* out) {
    if (!args.weight_less_one) return context.rows.scale(x, scale, args.weight, narrow, hidden, out);
    for (int i = 0; i < hidden; ++i) {
      const float value = x[i] * scale * (1.0f + args.weight[i].to_float());
      out[i] = narrow ? Bf16::from_float(value).to_float() : value;
    }
  };
  if (float* const* const out = std::get_if<float*>(&args.out))
    return norm(context.rounds_to_bf16(), *out + at);
  norm(true, sum);
  const std::span<const float> values(sum, static_cast<std::size_t>(hidden));
  if (const auto* const out = std::get_if<E4m3Rows>(&args.out)) write_codes(*out, row, values);
  if (const auto* const out = std::get_if<Nvfp4Rows>(&args.out)) write_codes(*out, row, values);
}

// body(row, sum): of a piece's rows, each with room for its sum, spread over the threads.
template <class Body>
void for_rows(OpContext& context, int begin, int end, std::size_t hidden, const Body& body) {
  context.threads.parallel_for(end - begin, [&](int first, int last) {
    std::vector<float> sum(hidden);
    for (int i = first; i < last; ++i) body(static_cast<std::size_t>(begin + i), std::span(sum));
  });
}

int first_row_of(int rows, int member, int members) {
  return static_cast<int>(static_cast<std::int64_t>(rows) * member / members);
}

}  // namespace

Status all_reduce_norm(OpContext& context, Communicator& communicator, const AllReduceNormArgs& args) {
  NIBBLE_RETURN_IF_ERROR(check(communicator, args));
  const std::size_t hidden = static_cast<std::size_t>(args.hidden);
  const int piece = static_cast<int>(std::min<std::size_t>(
      communicator.slot_bytes() / (hidden * sizeof(float)), static_cast<std::size_t>(args.rows) + 1));
  const Call call{.kind = Call::Kind::all_reduce_norm,
                  .algorithm = args.algorithm,
                  .count = static_cast<std::uint64_t>(args.rows),
                  .width = hidden};
  const int members = communicator.size();
  std::vector<float> owned;
  for (int begin = 0; begin == 0 || begin < args.rows; begin += piece) {
    const int rows = std::min(piece, args.rows - begin);
    const std::size_t offset = static_cast<std::size_t>(begin) * hidden;
    NIBBLE_ASSIGN(
        const Communicator::Shares parts,
        communicator.share(
            call, std::as_bytes(std::span(args.parts + offset, static_cast<std::size_t>(rows) * hidden))));
    if (args.algorithm == Algorithm::one_shot) {
      for_rows(context, 0, rows, hidden, [&](std::size_t row, std::span<float> sum) {
        sum_parts(parts, members, row * hidden, sum);
        finish_row(context, args, static_cast<std::size_t>(begin) + row, sum.data());
      });
      continue;
    }
    const int first = first_row_of(rows, communicator.member(), members);
    const int last = first_row_of(rows, communicator.member() + 1, members);
    owned.resize(static_cast<std::size_t>(last - first) * hidden);
    for_rows(context, first, last, hidden, [&](std::size_t row, std::span<float>) {
      const std::size_t of_own = (row - static_cast<std::size_t>(first)) * hidden;
      sum_parts(parts, members, row * hidden, std::span(owned).subspan(of_own, hidden));
    });
    NIBBLE_ASSIGN(const Communicator::Shares sums,
                  communicator.share(call, std::as_bytes(std::span<const float>(owned))));
    for (int owner = 0; owner < members; ++owner) {
      const int theirs = first_row_of(rows, owner, members);
      for_rows(context, theirs, first_row_of(rows, owner + 1, members), hidden,
               [&](std::size_t row, std::span<float> sum) {
                 const float* const from =
                     sums.of<float>(owner) + (row - static_cast<std::size_t>(theirs)) * hidden;
                 std::copy_n(from, hidden, sum.data());
                 finish_row(context, args, static_cast<std::size_t>(begin) + row, sum.data());
               });
    }
  }
  return {};
}

}  // namespace nibble
