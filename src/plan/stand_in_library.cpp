// A library of NCCL's kind, in one of the ways in which such a library can be.
#include <cstdlib>

namespace {

#ifdef STAND_IN_KNOWN_BAD
[[maybe_unused]] const int version = 22703;
#elif defined(STAND_IN_TOO_OLD)
[[maybe_unused]] const int version = 21805;
#elif defined(STAND_IN_TOO_NEW)
[[maybe_unused]] const int version = 23001;
#else
[[maybe_unused]] const int version = 22809;
#endif
}  // namespace

extern "C" {

#ifdef STAND_IN_OTHER_SIGNATURE
// Arguments have shifted: what was the version's place is now an option, and the version goes elsewhere.
int stand_in_version(int, int*) { return 0; }
#else
int stand_in_version(int* out) {
  *out = version;
  return 0;
}
#endif

#ifndef STAND_IN_MISSING_SYMBOL
int stand_in_reduce() { return 0; }
#endif

#ifdef STAND_IN_OTHER_SIZE
unsigned long stand_in_config_size() { return 72; }
#else
unsigned long stand_in_config_size() { return 64; }
#endif

int stand_in_probe() {
#ifdef STAND_IN_CRASHES
  *(volatile int*)16 = 1;
#endif
#ifdef STAND_IN_HANGS
  for (volatile int wait = 1; wait;) {
  }
#endif
#ifdef STAND_IN_EXITS
  std::exit(3);
#endif
#ifdef STAND_IN_FAILS
  return 7;
#endif
  return 0;
}
}
