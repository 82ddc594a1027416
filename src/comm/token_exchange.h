// Tokens to the ranks that have their experts, and the experts' results back.
//
// A member has rows of its own, each with the ids of its experts. dispatch() brings every member the rows
// that want experts of its own, once each however many they want, in the order of (source member, row).
// combine() takes one result for each (row, choice) back to the row's owner, who adds them in the order of
// choices: the sum that one rank makes. An id that no member has (-1 of a padding row) travels nowhere, and
// its result is +0.
//
//   normal       members say first how many rows they have; rows arrive contiguous: [rows, hidden]
//   low_latency  no counts are waited for: a round has room for a fixed number of rows a member; rows arrive
//                masked: [experts here, rows of a round, hidden], of which `ids` tells those that are there
//
// All members call dispatch() and combine() in turns, those without rows too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"

namespace nibble {

enum class ExchangeKind : std::uint8_t { none, normal, low_latency };

// What all members agree on.
struct ExchangeShape {
  ExchangeKind kind = ExchangeKind::normal;
  int members = 1;
  std::array<std::int64_t, most_ranks + 1> experts{};  // member m has [experts[m], experts[m + 1])
  int top_k = 0;
  std::int64_t hidden = 0;
  int most_rows = 0;  // of a member in one dispatch

  std::int64_t experts_of(int member) const;
  int member_of(std::int32_t expert) const;  // members: nobody
  // Places for rows that arrive at any member, each with `ids_a_place` ids.
  std::int64_t places() const;
  int ids_a_place() const { return kind == ExchangeKind::low_latency ? 1 : top_k; }
};
// Rows of a round of low_latency that all members have together, at most.
inline constexpr int low_latency_rows = 64;

struct TokenRows {
  int rows = 0;
  const float* x = nullptr;           // [rows, hidden]
  const std::int32_t* ids = nullptr;  // [rows, top_k]
};

// Where rows arrive; nothing here allocates.
struct ExchangeRoom {
  float* x = nullptr;           // [places, hidden]
  std::int32_t* ids = nullptr;  // [places, ids_a_place]
};

class TokenExchange {
 public:
  TokenExchange(const ExchangeShape& shape, const ExchangeRoom& room);

  // Rows that arrived: places [0, count) of the room. Of ids, only this member's are left; others are -1.
  // Refused while results of the last dispatch are still to be combined.
  Result<int> dispatch(Communicator& communicator, const TokenRows& mine);
  // products: [places * ids_a_place, hidden], of the places and ids that arrived. results: [rows * top_k,
  // hidden] of `mine`, which dispatch() was given.
  Status combine(Communicator& communicator, const float* products, float* results);

 private:
  struct Packet;
  void receive(const Communicator::Shares& shares, int source, int rows, int me);
  void put(const float* x, const std::int32_t* ids, int me);
  void place_contiguous(const float* x, const std::int32_t* ids, int me);
  void place_masked(const float* x, const std::int32_t* ids, int me);
  void clear(int me);
  std::size_t packet_words() const;

  ExchangeShape shape_;
  ExchangeRoom room_;
  TokenRows mine_;
  bool live_ = false;  // dispatched and not combined
  int arrived_ = 0;
  // results_of_[m][s]: how many results member m makes for rows of member s.
  std::array<std::array<std::int64_t, most_ranks>, most_ranks> results_of_{};
  std::vector<std::int32_t>
      produced_;  // (place, id) of this member's results, in the order of (source, row, choice)
  std::vector<std::int32_t> counts_;  // masked: rows of each expert here
};

}  // namespace nibble
