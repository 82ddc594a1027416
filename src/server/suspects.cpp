#include "server/suspects.h"

#include <sys/random.h>

#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace nibble {
namespace {

// SipHash-2-4 (Aumasson and Bernstein): a 64-bit code of a text under a 128-bit key.
class SipHash {
 public:
  SipHash(std::uint64_t key0, std::uint64_t key1)
      : v0_(key0 ^ 0x736f6d6570736575),
        v1_(key1 ^ 0x646f72616e646f6d),
        v2_(key0 ^ 0x6c7967656e657261),
        v3_(key1 ^ 0x7465646279746573) {}

  void add(std::string_view text) {
    std::size_t at = 0;
    for (; at + 8 <= text.size(); at += 8) word(load(text.substr(at, 8)));
    word(load(text.substr(at)) | std::uint64_t{text.size() & 0xff} << 56);
  }

  std::uint64_t finish() {
    v2_ ^= 0xff;
    for (int i = 0; i < 4; ++i) round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  static std::uint64_t load(std::string_view bytes) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  void word(std::uint64_t m) {
    v3_ ^= m;
    round();
    round();
    v0_ ^= m;
  }
  void round() {
    v0_ += v1_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v3_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ += v3_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ += v1_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v2_ = std::rotl(v2_, 32);
  }

  std::uint64_t v0_, v1_, v2_, v3_;
};

}  // namespace

Suspects::Suspects() {
  NIBBLE_CHECK(getrandom(key_.data(), sizeof key_, 0) == static_cast<ssize_t>(sizeof key_));
}

Fingerprint Suspects::fingerprint(std::string_view path, std::string_view body) const {
  SipHash low(key_[0], key_[1]), high(key_[2], key_[3]);
  for (SipHash* hash : {&low, &high}) {
    hash->add(path);
    hash->add(body);
  }
  return {low.finish(), high.finish()};
}

Suspects::Suspect* Suspects::find(Fingerprint fingerprint) {
  for (Suspect& suspect : suspects_) {
    if (suspect.deaths > 0 && suspect.fingerprint == fingerprint) return &suspect;
  }
  return nullptr;
}

Suspects::Suspect& Suspects::add(Fingerprint fingerprint) {
  Suspect& suspect = suspects_[static_cast<std::size_t>(next_suspect_)];
  next_suspect_ = (next_suspect_ + 1) % static_cast<int>(suspects_.size());
  suspect = {.fingerprint = fingerprint};
  return suspect;
}

Suspects::Entry Suspects::enter(Fingerprint fingerprint) {
  if (const Suspect* suspect = find(fingerprint)) {
    if (suspect->deaths >= most_deaths) return {.verdict = Verdict::refused};
    for (const Slot& slot : slots_) {
      if (slot.used && find(slot.fingerprint) != nullptr) return {.verdict = Verdict::waits};
    }
  }
  for (std::size_t tried = 0; tried < slots_.size(); ++tried) {
    const int number = next_slot_;
    next_slot_ = (next_slot_ + 1) % static_cast<int>(slots_.size());
    Slot& slot = slots_[static_cast<std::size_t>(number)];
    if (slot.used) continue;
    slot.fingerprint = fingerprint;
    slot.used = true;
    return {.slot = number};
  }
  return {};  // more at once than slots: it runs unnoted
}

void Suspects::leave(int slot, bool answered) {
  if (slot < 0) return;
  Slot& left = slots_[static_cast<std::size_t>(slot)];
  left.used = false;
  if (Suspect* suspect = answered ? find(left.fingerprint) : nullptr) suspect->deaths = 0;
}

int Suspects::blame() {
  ++deaths_;
  int blamed = 0;
  for (Slot& slot : slots_) {
    if (!slot.used) continue;
    slot.used = false;
    Suspect* known = find(slot.fingerprint);
    Suspect& suspect = known != nullptr ? *known : add(slot.fingerprint);
    if (std::exchange(suspect.last_death, deaths_) == deaths_) continue;
    ++suspect.deaths;
    ++blamed;
  }
  return blamed;
}

}  // namespace nibble
