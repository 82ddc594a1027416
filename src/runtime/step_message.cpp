#include "runtime/step_message.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

namespace nibble {
namespace {

struct SequenceOnTheWire {
  std::int32_t owner = 0, row_begin = 0, row_count = 0, first_position = 0, state = 0, resumes = 0;
  std::int32_t logit_begin = 0, logit_count = 0, draft_count = 0, awaits = 0;
  std::array<std::int32_t, page_groups> pages{};
  std::int32_t snapshots = 0;
};

template <class T>
void put(std::vector<std::byte>& bytes, std::span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (values.empty()) return;
  const std::size_t begin = bytes.size();
  bytes.resize(begin + values.size_bytes());
  std::memcpy(bytes.data() + begin, values.data(), values.size_bytes());
}
template <class T>
void put_all(std::vector<std::byte>& bytes, std::span<const T> values) {
  const std::uint64_t count = values.size();
  put(bytes, std::span(&count, 1));
  put(bytes, values);
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}
  template <class T>
  bool take_all(std::vector<T>& values) {
    std::uint64_t count = 0;
    if (left_.size() < sizeof count) return false;
    std::memcpy(&count, left_.data(), sizeof count);
    left_ = left_.subspan(sizeof count);
    if (count > left_.size() / sizeof(T)) return false;
    values.resize(count);
    if (count > 0) std::memcpy(values.data(), left_.data(), count * sizeof(T));
    left_ = left_.subspan(count * sizeof(T));
    return true;
  }
  bool take(bool& value) {
    if (left_.empty() || std::to_integer<unsigned>(left_.front()) > 1) return false;
    value = left_.front() == std::byte{1};
    left_ = left_.subspan(1);
    return true;
  }
  bool is_done() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

// Whether [begin, begin + count) lies within so many.
bool lies_within(std::int64_t begin, std::int64_t count, std::size_t all) {
  return begin >= 0 && count >= 0 && begin + count <= static_cast<std::int64_t>(all);
}

}  // namespace

void write_step(const Batch& batch, std::vector<std::byte>& bytes) {
  bytes.clear();
  const auto of_prompts = static_cast<std::uint8_t>(batch.of_prompts);
  put(bytes, std::span(&of_prompts, 1));
  put_all(bytes, std::span(batch.tokens));
  put_all(bytes, std::span(batch.logit_rows));
  const std::uint64_t count = batch.sequences.size();
  put(bytes, std::span(&count, 1));
  std::vector<PageId> pages;
  std::vector<StateSnapshot> snapshots;
  for (const BatchSequence& each : batch.sequences) {
    SequenceOnTheWire wire{.owner = each.owner,
                           .row_begin = each.row_begin,
                           .row_count = each.row_count,
                           .first_position = each.first_position,
                           .state = each.state,
                           .resumes = each.resumes,
                           .logit_begin = each.logit_begin,
                           .logit_count = each.logit_count,
                           .draft_count = each.draft_count,
                           .awaits = each.awaits,
                           .snapshots = static_cast<std::int32_t>(each.snapshots.size())};
    for (std::size_t group = 0; group < each.pages.size(); ++group) {
      wire.pages[group] = static_cast<std::int32_t>(each.pages[group].size());
      pages.insert(pages.end(), each.pages[group].begin(), each.pages[group].end());
    }
    snapshots.insert(snapshots.end(), each.snapshots.begin(), each.snapshots.end());
    put(bytes, std::span<const SequenceOnTheWire>(&wire, 1));
  }
  put_all(bytes, std::span<const PageId>(pages));
  put_all(bytes, std::span<const StateSnapshot>(snapshots));
}

Status ReceivedStep::read(std::span<const std::byte> bytes) {
  const Status odd = internal_error("a step came that is none");
  const auto before = static_cast<std::int32_t>(batch_.sequences.size());
  batch_.clear();
  Reader reader(bytes);
  std::vector<SequenceOnTheWire> sequences;
  if (!reader.take(batch_.of_prompts) || !reader.take_all(batch_.tokens) ||
      !reader.take_all(batch_.logit_rows) || !reader.take_all(sequences) || !reader.take_all(pages_) ||
      !reader.take_all(snapshots_) || !reader.is_done())
    return odd;
  std::size_t page = 0, snapshot = 0;
  for (const SequenceOnTheWire& each : sequences) {
    BatchSequence& sequence = batch_.sequences.emplace_back();
    sequence.owner = each.owner;
    sequence.row_begin = each.row_begin;
    sequence.row_count = each.row_count;
    sequence.first_position = each.first_position;
    sequence.state = each.state;
    sequence.resumes = each.resumes;
    sequence.logit_begin = each.logit_begin;
    sequence.logit_count = each.logit_count;
    sequence.draft_count = each.draft_count;
    sequence.awaits = each.awaits;
    if (!lies_within(each.row_begin, each.row_count, batch_.tokens.size()) ||
        !lies_within(each.logit_begin, each.logit_count, batch_.logit_rows.size()) || each.draft_count < 0 ||
        each.draft_count > std::max(each.row_count - 1, 0) || each.awaits < -1 || each.awaits >= before ||
        each.first_position < 0 || each.owner < 0 || each.owner >= owners_)
      return odd;
    for (std::size_t group = 0; group < each.pages.size(); ++group) {
      if (!lies_within(static_cast<std::int64_t>(page), each.pages[group], pages_.size())) return odd;
      const auto count = static_cast<std::size_t>(each.pages[group]);
      sequence.pages[group] = std::span(pages_).subspan(page, count);
      page += count;
    }
    if (!lies_within(static_cast<std::int64_t>(snapshot), each.snapshots, snapshots_.size())) return odd;
    sequence.snapshots = std::span(snapshots_).subspan(snapshot, static_cast<std::size_t>(each.snapshots));
    snapshot += static_cast<std::size_t>(each.snapshots);
  }
  for (const LogitRow& each : batch_.logit_rows)
    if (!lies_within(each.row, 1, batch_.tokens.size())) return odd;
  return {};
}

}  // namespace nibble
