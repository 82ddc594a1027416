// A library under NCCL's names, in one of the ways in which such a library can be.
#include <time.h>

#include <cstdlib>

namespace {

#ifdef STAND_IN_KNOWN_BAD
[[maybe_unused]] const int version = 22803;
#elif defined(STAND_IN_TOO_OLD)
[[maybe_unused]] const int version = 21805;
#elif defined(STAND_IN_TOO_NEW)
[[maybe_unused]] const int version = 23001;
#else
[[maybe_unused]] const int version = 22809;
#endif

[[maybe_unused]] void misbehave() {
#ifdef STAND_IN_CRASHES
  *(volatile int*)16 = 1;
#endif
#ifdef STAND_IN_HANGS
  for (volatile int wait = 1; wait;) {
  }
#endif
#ifdef STAND_IN_WAITS
  const timespec an_hour{3600, 0};
  nanosleep(&an_hour, nullptr);
#endif
#ifdef STAND_IN_LATE
  const timespec longer_than_its_cpu_time{0, 500'000'000};
  nanosleep(&longer_than_its_cpu_time, nullptr);
#endif
#ifdef STAND_IN_EXITS
  std::exit(3);
#endif
}

}  // namespace

extern "C" {

#ifdef STAND_IN_OTHER_SIGNATURE
// Arguments have shifted: what was the version's place is now an option, and the version goes elsewhere.
int ncclGetVersion(int, int*) { return 0; }
#else
int ncclGetVersion(int* out) {
  misbehave();
  *out = version;
  return 0;
}
#endif

int ncclGetUniqueId() { return 0; }
int ncclCommInitRank() { return 0; }
int ncclCommGetAsyncError() { return 0; }
const char* ncclGetErrorString() { return ""; }
int ncclCommAbort() { return 0; }
#ifndef STAND_IN_MISSING_SYMBOL
int ncclAllReduce() { return 0; }
#endif

#ifdef STAND_IN_OTHER_SIZE
unsigned long stand_in_config_size() { return 72; }
#else
unsigned long stand_in_config_size() { return 64; }
#endif

#ifdef STAND_IN_FAILS
int stand_in_probe() { return 7; }
#else
int stand_in_probe() { return 0; }
#endif
}
