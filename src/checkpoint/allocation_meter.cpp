#include "checkpoint/allocation_meter.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace nibble {
namespace {

std::atomic<std::size_t> live{0};
std::atomic<std::size_t> most{0};

}  // namespace

AllocationMeter::AllocationMeter() : before_(live.load()) { most.store(before_); }
std::size_t AllocationMeter::peak() const { return most.load() - before_; }

}  // namespace nibble

// All the forms that could otherwise be served by another allocator than the matching delete.
void* operator new(std::size_t size) {
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  const std::size_t now = nibble::live.fetch_add(malloc_usable_size(memory)) + malloc_usable_size(memory);
  std::size_t seen = nibble::most.load();
  while (now > seen && !nibble::most.compare_exchange_weak(seen, now)) {
  }
  return memory;
}
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return operator new(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return operator new(size); }

void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  nibble::live.fetch_sub(malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
void operator delete[](void* memory) noexcept { operator delete(memory); }
void operator delete[](void* memory, std::size_t) noexcept { operator delete(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { operator delete(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { operator delete(memory); }
