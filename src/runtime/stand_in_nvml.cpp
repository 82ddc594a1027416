// A management library for tests, of one GPU at 00000000:0a:00.0 whose memory is slow and has had an error.
#include <cstring>

namespace {

constexpr int no = 6;
int handle = 0;

int gives(void* device, unsigned* to, unsigned value) {
  if (device != &handle) return no;
  *to = value;
  return 0;
}

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  if (std::strcmp(address, "00000000:0a:00.0") != 0) return no;
  *device = &handle;
  return 0;
}
int nvmlDeviceGetClockInfo(void* device, unsigned type, unsigned* mhz) {
  return gives(device, mhz, type == 1 ? 1755 : 1593);
}
int nvmlDeviceGetMaxClockInfo(void* device, unsigned type, unsigned* mhz) {
  return gives(device, mhz, type == 1 ? 1980 : 3201);
}
int nvmlDeviceGetCurrPcieLinkGeneration(void* device, unsigned* generation) {
  return gives(device, generation, 5);
}
int nvmlDeviceGetMaxPcieLinkGeneration(void* device, unsigned* generation) {
  return gives(device, generation, 5);
}
int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned* width) { return gives(device, width, 8); }
int nvmlDeviceGetMaxPcieLinkWidth(void* device, unsigned* width) { return gives(device, width, 16); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* bits) {
  *bits = 0x4 | 0x40;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void*, unsigned kind, unsigned, unsigned long long* count) {
  *count = kind == 0 ? 12 : 1;
  return 0;
}
int nvmlDeviceGetEccMode(void*, unsigned* now, unsigned* after_reset) {
  *now = *after_reset = 1;
  return 0;
}
// It has no nvmlDeviceGetRemappedRows, as old ones have not, and its GPU no thermometer.
int nvmlDeviceGetTemperature(void*, unsigned, unsigned*) { return no; }
}
