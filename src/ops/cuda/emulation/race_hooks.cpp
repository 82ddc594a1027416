// What a compiler makes every load and store call under -fsanitize=thread, told to the watch of races instead
// of the compiler's own library.
#include <cstddef>
#include <cstdint>

#include "ops/cuda/emulation/races.h"

namespace {

using nibble::emulation::accessed;

[[maybe_unused]] const bool told = nibble::emulation::accesses_are_told = true;

}  // namespace

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define NIBBLE_TOLD(bytes)                                                                           \
  void __tsan_read##bytes(void* at) { accessed(at, bytes, {.place = __builtin_return_address(0)}); } \
  void __tsan_write##bytes(void* at) {                                                               \
    accessed(at, bytes, {.write = true, .place = __builtin_return_address(0)});                      \
  }                                                                                                  \
  void __tsan_unaligned_read##bytes(void* at) {                                                      \
    accessed(at, bytes, {.place = __builtin_return_address(0)});                                     \
  }                                                                                                  \
  void __tsan_unaligned_write##bytes(void* at) {                                                     \
    accessed(at, bytes, {.write = true, .place = __builtin_return_address(0)});                      \
  }
NIBBLE_TOLD(1)
NIBBLE_TOLD(2)
NIBBLE_TOLD(4)
NIBBLE_TOLD(8)
NIBBLE_TOLD(16)
#undef NIBBLE_TOLD
void __tsan_read_range(void* at, std::size_t bytes) {
  accessed(at, bytes, {.place = __builtin_return_address(0)});
}
void __tsan_write_range(void* at, std::size_t bytes) {
  accessed(at, bytes, {.write = true, .place = __builtin_return_address(0)});
}

// The strongest order will do for all.
#define NIBBLE_ATOMIC(bits)                                                                               \
  std::uint##bits##_t __tsan_atomic##bits##_load(const std::uint##bits##_t* at, int) {                    \
    accessed(at, sizeof *at, {.atomic = true, .place = __builtin_return_address(0)});                     \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                         \
  }                                                                                                       \
  void __tsan_atomic##bits##_store(std::uint##bits##_t* at, std::uint##bits##_t value, int) {             \
    accessed(at, sizeof *at, {.write = true, .atomic = true, .place = __builtin_return_address(0)});      \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                        \
  }                                                                                                       \
  std::uint##bits##_t __tsan_atomic##bits##_fetch_add(std::uint##bits##_t* at, std::uint##bits##_t by,    \
                                                      int) {                                              \
    accessed(at, sizeof *at, {.write = true, .atomic = true, .place = __builtin_return_address(0)});      \
    return __atomic_fetch_add(at, by, __ATOMIC_SEQ_CST);                                                  \
  }                                                                                                       \
  int __tsan_atomic##bits##_compare_exchange_weak(std::uint##bits##_t* at, std::uint##bits##_t* expected, \
                                                  std::uint##bits##_t value, int, int) {                  \
    accessed(at, sizeof *at, {.write = true, .atomic = true, .place = __builtin_return_address(0)});      \
    return __atomic_compare_exchange_n(at, expected, value, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);    \
  }
NIBBLE_ATOMIC(32)
NIBBLE_ATOMIC(64)
#undef NIBBLE_ATOMIC

}  // extern "C"
