#include "ops/sample/logit_change_list.h"

#include <algorithm>
#include <tuple>

namespace nibble {
namespace {

// Above any count of an answer's tokens: the token is listed.
constexpr std::uint32_t seen = std::uint32_t{1} << 31;

class RowList {
 public:
  explicit RowList(std::vector<LogitChange>& list) : list_(list), first_(list.size()) {}

  void put(TokenId id, LogitChangeKind kind, float value) {
    list_.push_back(
        {.id = id, .kind = kind, .value = value, .place = static_cast<std::int32_t>(list_.size() - first_)});
  }
  void sort() {
    std::sort(list_.begin() + static_cast<std::ptrdiff_t>(first_), list_.end(),
              [](const LogitChange& a, const LogitChange& b) {
                return std::tie(a.id, a.place) < std::tie(b.id, b.place);
              });
  }

 private:
  std::vector<LogitChange>& list_;
  std::size_t first_;
};

void list_penalties(const LogitChanges& changes, std::vector<std::uint32_t>& counts, RowList& list) {
  const auto count = [&](TokenId token) -> std::uint32_t& { return counts[static_cast<std::size_t>(token)]; };
  const auto see = [&](TokenId token) {
    if ((count(token) & seen) == 0 && changes.repetition_penalty != 1.0f)
      list.put(token, LogitChangeKind::penalize, changes.repetition_penalty);
    count(token) |= seen;
  };
  for (const TokenId token : changes.prompt) see(token);
  for (const TokenId token : changes.answer) {
    see(token);
    ++count(token);
  }
  // The first of a token's places finds its count and takes it.
  for (const TokenId token : changes.answer) {
    const std::uint32_t times = count(token) & ~seen;
    if (times == 0) continue;
    const float frequency = changes.frequency_penalty * static_cast<float>(times);
    if (frequency != 0.0f) list.put(token, LogitChangeKind::subtract, frequency);
    if (changes.presence_penalty != 0.0f)
      list.put(token, LogitChangeKind::subtract, changes.presence_penalty);
    count(token) = seen;
  }
  for (const TokenId token : changes.prompt) count(token) = 0;
  for (const TokenId token : changes.answer) count(token) = 0;
}

}  // namespace

void list_logit_changes(const LogitChanges& changes, std::vector<std::uint32_t>& counts,
                        std::vector<LogitChange>& list) {
  RowList row(list);
  for (const auto& [id, bias] : changes.bias) row.put(id, LogitChangeKind::add, bias);
  if (changes.penalizes()) list_penalties(changes, counts, row);
  for (const TokenId id : changes.banned) {
    if (id >= 0 && static_cast<std::size_t>(id) < counts.size()) row.put(id, LogitChangeKind::ban, 0);
  }
  row.sort();
}

}  // namespace nibble
