#include "server/suspects.h"

#include <utility>

#include "base/check.h"

namespace nibble {

Suspects::Suspects() : key_(drawn_key()) {}

Fingerprint Suspects::fingerprint(std::string_view path, std::string_view body) const {
  SipHash hash(key_);
  hash.add(path.size());  // says where the body begins
  hash.add_text(path);
  hash.add_text(body);
  return hash.finish();
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
