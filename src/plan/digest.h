// All ranks must have made the same plan, over libraries of the same versions, before any takes memory. Each
// sends what it has as short texts; whoever gathers them says who differs in what.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "plan/plan.h"

namespace nibble {

struct RankDigest {
  int rank = 0;
  std::vector<std::pair<std::string, std::string>> fields;  // "kv_pages", "398971"; "gate nccl", "2.28.9"
  std::uint64_t hash() const;                               // equal fields have equal ones, on every machine
};

RankDigest digest_of(const Plan& plan, int rank);

// Refused with the ranks and the fields in which they differ.
Status compare_ranks(std::span<const RankDigest> digests);

}  // namespace nibble
