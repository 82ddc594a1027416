// Requests that were being served when the process died. It lies in memory that a parent shares with the
// processes it starts one after the other: what a request is, as a fingerprint, is noted before anything
// reads it, and taken back when it is answered. What stands there after a death is a suspect. Suspects run
// one at a time, so that the next death blames one of them; whoever was there at two deaths is refused from
// then on.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "base/sip_hash.h"

namespace nibble {

using Fingerprint = KeyedHash;

class Suspects {
 public:
  static constexpr int most_deaths = 2;

  Suspects();

  // 128 bits under a key that nobody knows, so that no one makes a request that looks like another's.
  Fingerprint fingerprint(std::string_view path, std::string_view body) const;

  enum class Verdict : std::uint8_t { enters, waits, refused };
  struct Entry {
    Verdict verdict = Verdict::enters;
    int slot = -1;  // for leave()
  };
  Entry enter(Fingerprint fingerprint);
  // `answered`: it was served to its end, and is no suspect any more.
  void leave(int slot, bool answered);

  // By the parent, when no process serves: what is noted becomes suspect. How many requests that were.
  int blame();

 private:
  struct Slot {
    Fingerprint fingerprint;
    std::atomic<bool> used = false;  // set last and cleared first
  };
  struct Suspect {
    Fingerprint fingerprint;
    int deaths = 0;
    int last_death = 0;  // counted once a death, however often it was being served
  };

  Suspect* find(Fingerprint fingerprint);
  Suspect& add(Fingerprint fingerprint);

  HashKey key_;
  std::array<Slot, 4096> slots_;
  std::array<Suspect, 512> suspects_;  // a ring: the oldest is forgotten
  int next_suspect_ = 0;
  int next_slot_ = 0;
  int deaths_ = 0;
};

}  // namespace nibble
