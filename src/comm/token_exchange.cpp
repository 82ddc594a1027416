#include "comm/token_exchange.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"

namespace nibble {

std::int64_t ExchangeShape::experts_of(int member) const {
  return experts[static_cast<std::size_t>(member) + 1] - experts[static_cast<std::size_t>(member)];
}

int ExchangeShape::member_of(std::int32_t expert) const {
  for (int member = 0; member < members; ++member) {
    if (expert >= experts[static_cast<std::size_t>(member)] &&
        expert < experts[static_cast<std::size_t>(member) + 1])
      return member;
  }
  return members;
}

std::int64_t ExchangeShape::places() const {
  const std::int64_t rows = std::int64_t{members} * most_rows;
  if (kind != ExchangeKind::low_latency) return rows;
  std::int64_t most = 0;
  for (int member = 0; member < members; ++member) most = std::max(most, experts_of(member));
  return most * rows;
}

// A row as it travels: its ids, then its values.
std::size_t TokenExchange::packet_words() const {
  return static_cast<std::size_t>(shape_.top_k) + static_cast<std::size_t>(shape_.hidden);
}

TokenExchange::TokenExchange(const ExchangeShape& shape, const ExchangeRoom& room)
    : shape_(shape), room_(room) {
  NIBBLE_CHECK(shape.kind != ExchangeKind::none && shape.members <= most_ranks);
  produced_.reserve(static_cast<std::size_t>(shape.members) * static_cast<std::size_t>(shape.most_rows) *
                    static_cast<std::size_t>(shape.top_k));
  std::int64_t most = 0;
  for (int member = 0; member < shape.members; ++member) most = std::max(most, shape.experts_of(member));
  counts_.resize(static_cast<std::size_t>(most));
}

void TokenExchange::clear(int me) {
  arrived_ = 0;
  produced_.clear();
  results_of_ = {};
  std::fill(counts_.begin(), counts_.end(), 0);
  if (shape_.kind == ExchangeKind::low_latency)
    std::fill_n(room_.ids, shape_.experts_of(me) * shape_.members * shape_.most_rows, -1);
}

Result<int> TokenExchange::dispatch(Communicator& communicator, const TokenRows& mine) {
  if (live_)
    return internal_error("tokens were dispatched before the results of the last ones were combined");
  NIBBLE_CHECK(communicator.size() == shape_.members);
  if (mine.rows > shape_.most_rows) {
    return invalid_argument("a dispatch of " + std::to_string(mine.rows) + " rows; a rank may send " +
                            std::to_string(shape_.most_rows) + " at once");
  }
  const int me = communicator.member();
  clear(me);
  mine_ = mine;
  const std::size_t words = packet_words(), header = 1;
  const int fit = static_cast<int>((communicator.slot_bytes() / sizeof(float) - header) / words);
  NIBBLE_CHECK(fit > 0, "a slot holds a row at least");
  const Call call{.kind = Call::Kind::dispatch,
                  .count = static_cast<std::uint64_t>(shape_.most_rows),
                  .width = static_cast<std::uint64_t>(shape_.hidden)};
  std::array<std::int32_t, most_ranks> rows{};
  int most = shape_.most_rows;
  if (shape_.kind == ExchangeKind::normal) {
    const std::int32_t own = mine.rows;
    NIBBLE_ASSIGN(const Communicator::Shares counts,
                  communicator.share(call, std::as_bytes(std::span(&own, 1))));
    most = 0;
    for (int source = 0; source < shape_.members; ++source)
      most = std::max(most, *counts.of<std::int32_t>(source));
  } else {
    NIBBLE_CHECK(most <= fit, "a round of low_latency is one step");
  }
  // Sources are taken one after the other, so each has its pieces before the next one's.
  const int pieces = (most + fit - 1) / fit;
  NIBBLE_CHECK(pieces <= 1 || shape_.kind == ExchangeKind::normal);
  for (int turn = 0; turn < (pieces > 1 ? pieces * shape_.members : 1); ++turn) {
    const int piece = pieces > 1 ? turn % pieces : 0, only = pieces > 1 ? turn / pieces : -1;
    const int first = piece * fit, count = std::clamp(mine.rows - first, 0, fit);
    NIBBLE_ASSIGN(const Communicator::Shares shares, communicator.share_with(call, [&](std::byte* slot) {
      const bool sends = only < 0 || only == me;
      float* to = reinterpret_cast<float*>(slot);
      const std::int32_t sent = sends ? count : 0;
      std::memcpy(to, &sent, sizeof sent);
      for (int row = first; sends && row < first + count; ++row) {
        float* packet = to + header + static_cast<std::size_t>(row - first) * words;
        std::memcpy(packet, mine.ids + row * shape_.top_k,
                    static_cast<std::size_t>(shape_.top_k) * sizeof(float));
        std::copy_n(mine.x + row * shape_.hidden, shape_.hidden, packet + shape_.top_k);
      }
      return (header + static_cast<std::size_t>(sent) * words) * sizeof(float);
    }));
    for (int source = 0; source < shape_.members; ++source) {
      const float* from = shares.of<float>(source);
      std::memcpy(&rows[static_cast<std::size_t>(source)], from, sizeof(std::int32_t));
      receive(shares, source, rows[static_cast<std::size_t>(source)], me);
    }
  }
  live_ = true;
  return shape_.kind == ExchangeKind::low_latency
             ? static_cast<int>(shape_.experts_of(me)) * shape_.members * shape_.most_rows
             : arrived_;
}

void TokenExchange::receive(const Communicator::Shares& shares, int source, int rows, int me) {
  const std::size_t words = packet_words();
  const float* packet = shares.of<float>(source) + 1;
  for (int row = 0; row < rows; ++row, packet += words) {
    const auto* ids = reinterpret_cast<const std::int32_t*>(packet);
    bool wanted = false;
    for (int choice = 0; choice < shape_.top_k; ++choice) {
      const int member = shape_.member_of(ids[choice]);
      if (member == shape_.members) continue;
      ++results_of_[static_cast<std::size_t>(member)][static_cast<std::size_t>(source)];
      wanted = wanted || member == me;
    }
    if (wanted) put(packet + shape_.top_k, ids, me);
  }
}

void TokenExchange::put(const float* x, const std::int32_t* ids, int me) {
  shape_.kind == ExchangeKind::low_latency ? place_masked(x, ids, me) : place_contiguous(x, ids, me);
}

void TokenExchange::place_contiguous(const float* x, const std::int32_t* ids, int me) {
  std::copy_n(x, shape_.hidden, room_.x + arrived_ * shape_.hidden);
  std::int32_t* own = room_.ids + std::int64_t{arrived_} * shape_.top_k;
  for (int choice = 0; choice < shape_.top_k; ++choice) {
    own[choice] = shape_.member_of(ids[choice]) == me ? ids[choice] : -1;
    if (own[choice] >= 0) produced_.push_back(arrived_ * shape_.top_k + choice);
  }
  ++arrived_;
}

void TokenExchange::place_masked(const float* x, const std::int32_t* ids, int me) {
  const int rows = shape_.members * shape_.most_rows;
  for (int choice = 0; choice < shape_.top_k; ++choice) {
    if (shape_.member_of(ids[choice]) != me) continue;
    const auto expert = static_cast<std::int32_t>(ids[choice] - shape_.experts[static_cast<std::size_t>(me)]);
    const std::int32_t place = expert * rows + counts_[static_cast<std::size_t>(expert)]++;
    std::copy_n(x, shape_.hidden, room_.x + place * shape_.hidden);
    room_.ids[place] = ids[choice];
    produced_.push_back(place);
  }
}

Status TokenExchange::combine(Communicator& communicator, const float* products, float* results) {
  NIBBLE_CHECK(live_, "a combine belongs to a dispatch");
  live_ = false;
  const auto me = static_cast<std::size_t>(communicator.member());
  const auto fit = static_cast<std::int64_t>(communicator.slot_bytes() / sizeof(float)) / shape_.hidden;
  NIBBLE_CHECK(fit > 0, "a slot holds a row at least");
  // Where this member's results begin in each other's list, and how long the longest list is.
  std::array<std::int64_t, most_ranks> next{};
  std::array<int, most_ranks> slot{};
  std::int64_t longest = 0;
  for (std::size_t member = 0; member < static_cast<std::size_t>(shape_.members); ++member) {
    std::int64_t length = 0;
    for (std::size_t source = 0; source < static_cast<std::size_t>(shape_.members); ++source) {
      if (source == me) next[member] = length;
      length += results_of_[member][source];
    }
    longest = std::max(longest, length);
  }
  const int slots = mine_.rows * shape_.top_k;
  for (int each = 0; each < slots; ++each) {
    if (shape_.member_of(mine_.ids[each]) == shape_.members)
      std::fill_n(results + each * shape_.hidden, shape_.hidden, 0.0f);
  }
  for (std::int64_t first = 0; first < std::max<std::int64_t>(longest, 1); first += fit) {
    const Call call{.kind = Call::Kind::combine,
                    .count = static_cast<std::uint64_t>(longest),
                    .width = static_cast<std::uint64_t>(shape_.hidden)};
    NIBBLE_ASSIGN(const Communicator::Shares shares, communicator.share_with(call, [&](std::byte* to) {
      const std::int64_t end = std::min(first + fit, static_cast<std::int64_t>(produced_.size()));
      for (std::int64_t i = first; i < end; ++i) {
        std::copy_n(products + produced_[static_cast<std::size_t>(i)] * shape_.hidden, shape_.hidden,
                    reinterpret_cast<float*>(to) + (i - first) * shape_.hidden);
      }
      const std::int64_t sent = std::max<std::int64_t>(end - first, 0) * shape_.hidden;
      return static_cast<std::size_t>(sent) * sizeof(float);
    }));
    for (int member = 0; member < shape_.members; ++member) {
      const auto m = static_cast<std::size_t>(member);
      for (; slot[m] < slots && next[m] < first + fit; ++slot[m]) {
        if (shape_.member_of(mine_.ids[slot[m]]) != member) continue;
        std::copy_n(shares.of<float>(member) + (next[m]++ - first) * shape_.hidden, shape_.hidden,
                    results + slot[m] * shape_.hidden);
      }
    }
  }
  return {};
}

}  // namespace nibble
