#include "text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace nibble {
namespace {

template <std::size_t bytes>
std::uint64_t load(const char* from) {
  static_assert(bytes <= 8);
  std::uint64_t word = 0;
  std::memcpy(&word, from, bytes);
  return word;
}

// The two halves of a 128-bit product folded together.
std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

constexpr std::uint64_t kOdd1 = 0x9E3779B97F4A7C15u;
constexpr std::uint64_t kOdd2 = 0xD1B54A32D192ED03u;

// Of more than 8 bytes; not keyed: a user's text only ever reads the table.
std::uint64_t hash_bytes(std::string_view bytes) {
  const char* p = bytes.data();
  const char* const end = p + bytes.size();
  std::uint64_t hash = kOdd2 ^ bytes.size();
  for (; end - p > 16; p += 16) hash = fold(load<8>(p) ^ hash, load<8>(p + 8) ^ kOdd1);
  const char* const tail = bytes.size() >= 16 ? end - 16 : bytes.data();
  return fold(load<8>(tail) ^ hash, load<8>(end - 8) ^ kOdd1);
}

}  // namespace

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

TokenFinder::TokenFinder(const Vocabulary& vocabulary, std::span<const TokenId> tokens)
    : TokenFinder(vocabulary, tokens.size()) {
  constexpr std::size_t kAhead = 16;  // tokens in flight: each is a cache miss
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i + kAhead < tokens.size()) prefetch(vocabulary.bytes(tokens[i + kAhead]));
    insert(tokens[i]);
  }
}

TokenFinder::Key TokenFinder::key_of(std::string_view bytes) {
  const char* p = bytes.data();
  const std::size_t size = bytes.size();
  Key key{0, static_cast<std::uint64_t>(size) << 32};
  // Overlapping loads of fixed size; what is read twice is shifted out or lands on itself.
  if (size > kInline) return {hash_bytes(bytes), kLong << 32 | static_cast<std::uint32_t>(size)};
  if (size > 8) {
    key.low = load<8>(p);
    key.high |= load<8>(p + size - 8) >> (8 * (16 - size));
  } else if (size >= 4) {
    key.low = load<4>(p) | load<4>(p + size - 4) << (8 * (size - 4));
  } else if (size > 0) {
    key.low =
        load<1>(p) | load<1>(p + size / 2) << (8 * (size / 2)) | load<1>(p + size - 1) << (8 * (size - 1));
  }
  return key;
}

std::uint64_t TokenFinder::hash_of(Key key) { return fold(key.low ^ kOdd2, key.high ^ kOdd1); }

bool TokenFinder::holds(const Slot& slot, Key key, std::string_view bytes) const {
  constexpr std::uint64_t kKeyBits = (std::uint64_t{1} << kIdShift) - 1;
  if (slot.low != key.low || (slot.high & kKeyBits) != key.high) return false;
  return bytes.size() <= kInline || vocabulary_->bytes(static_cast<TokenId>(slot.high >> kIdShift)) == bytes;
}

void TokenFinder::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  used_ = 0;
  for (const Slot& slot : old) {
    if (slot.high != 0) insert(static_cast<TokenId>(slot.high >> kIdShift));
  }
}

TokenId TokenFinder::insert(TokenId id) {
  NIBBLE_CHECK(id >= 0 && id < 1 << 24);
  if (2 * (used_ + 1) > slots_.size()) grow();
  const std::string_view bytes = vocabulary_->bytes(id);
  const Key key = key_of(bytes);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash_of(key) & mask;; at = (at + 1) & mask) {
    Slot& slot = slots_[at];
    if (slot.high == 0) {
      slot = {key.low, key.high | static_cast<std::uint64_t>(id) << kIdShift};
      ++used_;
      return id;
    }
    if (holds(slot, key, bytes)) return static_cast<TokenId>(slot.high >> kIdShift);
  }
}

TokenId TokenFinder::find(std::string_view bytes) const {
  const Key key = key_of(bytes);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash_of(key) & mask;; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.high == 0) return -1;
    if (holds(slot, key, bytes)) return static_cast<TokenId>(slot.high >> kIdShift);
  }
}

}  // namespace nibble
