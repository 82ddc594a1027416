#include "text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace nibble {
namespace {

std::uint64_t load(const char* bytes, std::size_t count) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, count);
  return word;
}

// The two halves of a 128-bit product folded together.
std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

constexpr std::uint64_t kOdd1 = 0x9E3779B97F4A7C15u;
constexpr std::uint64_t kOdd2 = 0xD1B54A32D192ED03u;

}  // namespace

std::uint64_t hash_bytes(std::string_view bytes) {
  const char* p = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t hash = kOdd2 ^ left;
  for (; left > 16; p += 16, left -= 16) hash = fold(load(p, 8) ^ hash, load(p + 8, 8) ^ kOdd1);
  std::uint64_t low, high;
  if (left >= 8) {
    low = load(p, 8);
    high = load(p + left - 8, 8);
  } else if (left >= 4) {
    low = load(p, 4);
    high = load(p + left - 4, 4);
  } else {
    low = left == 0 ? 0 : load(p, 1) | load(p + left / 2, 1) << 8 | load(p + left - 1, 1) << 16;
    high = 0;
  }
  return fold(low ^ hash, high ^ kOdd1);
}

Vocabulary::Vocabulary(const std::vector<VocabularyEntry>& entries) {
  TokenId largest = -1;
  std::size_t total = 0;
  for (const VocabularyEntry& entry : entries) {
    NIBBLE_CHECK(entry.id >= 0 && !entry.bytes.empty());
    largest = std::max(largest, entry.id);
    total += entry.bytes.size();
  }
  NIBBLE_CHECK(total <= UINT32_MAX);
  std::vector<std::string_view> by_id(static_cast<std::size_t>(largest) + 1);
  for (const VocabularyEntry& entry : entries) by_id[static_cast<std::size_t>(entry.id)] = entry.bytes;
  all_.reserve(total);
  begin_.reserve(by_id.size() + 1);
  for (const std::string_view bytes : by_id) {
    begin_.push_back(static_cast<std::uint32_t>(all_.size()));
    all_.append(bytes);
  }
  begin_.push_back(static_cast<std::uint32_t>(all_.size()));
}

TokenFinder::TokenFinder(const Vocabulary& vocabulary, std::size_t expected)
    : vocabulary_(&vocabulary), slots_(std::bit_ceil(std::max<std::size_t>(2 * expected, 16))) {}

void TokenFinder::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  used_ = 0;
  for (const Slot& slot : old) {
    if (slot.id >= 0) insert(slot.id);
  }
}

TokenId TokenFinder::insert(TokenId id) {
  if (2 * (used_ + 1) > slots_.size()) grow();
  const std::string_view bytes = vocabulary_->bytes(id);
  const std::uint64_t hash = hash_bytes(bytes);
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
    Slot& slot = slots_[at];
    if (slot.id < 0) {
      slot = {tag, id};
      ++used_;
      longest_ = std::max(longest_, bytes.size());
      return id;
    }
    if (slot.tag == tag && vocabulary_->bytes(slot.id) == bytes) return slot.id;
  }
}

TokenId TokenFinder::find(std::string_view bytes) const {
  if (bytes.size() > longest_) return -1;
  const std::uint64_t hash = hash_bytes(bytes);
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.id < 0) return -1;
    if (slot.tag == tag && vocabulary_->bytes(slot.id) == bytes) return slot.id;
  }
}

}  // namespace nibble
