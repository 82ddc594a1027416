// The changes to a row of logits (logit_changes.h) as a list by id, which may be applied an id at a time:
// what a device gets instead of prompts, answers and penalties.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/sample/logit_changes.h"

namespace nibble {

enum class LogitChangeKind : std::int32_t {
  add,       // logit += value
  penalize,  // logit > 0 ? logit / value : logit * value
  subtract,  // logit -= value
  ban        // the lowest logit there is
};

struct LogitChange {
  TokenId id = 0;
  LogitChangeKind kind = LogitChangeKind::add;
  float value = 0;
  std::int32_t place = 0;  // in the row's list; of those of an id the lower comes first
};

// Appends the row's changes in ascending order of (id, place). Applied in this order, each operation rounded,
// and then kept within +-largest_changed_logit, they give what change_logits gives. Allocates nothing where
// `list` has room, and `counts` is [vocabulary], all 0 between calls.
void list_logit_changes(const LogitChanges& changes, std::vector<std::uint32_t>& counts,
                        std::vector<LogitChange>& list);

}  // namespace nibble
