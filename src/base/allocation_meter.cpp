#include "base/allocation_meter.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace nibble {
namespace {

std::atomic<std::size_t> live{0};
std::atomic<std::size_t> most{0};
std::atomic<std::size_t> calls{0};

void count_allocation(void* memory) {
  calls.fetch_add(1);
  const std::size_t now = live.fetch_add(malloc_usable_size(memory)) + malloc_usable_size(memory);
  std::size_t seen = most.load();
  while (now > seen && !most.compare_exchange_weak(seen, now)) {
  }
}

}  // namespace

AllocationMeter::AllocationMeter() : before_(live.load()), calls_before_(calls.load()) {
  most.store(before_);
}
std::size_t AllocationMeter::count() const { return calls.load() - calls_before_; }
std::size_t AllocationMeter::peak() const { return most.load() - before_; }

}  // namespace nibble

// All the forms that could otherwise be served by another allocator than the matching delete.
void* operator new(std::size_t size) {
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  nibble::count_allocation(memory);
  return memory;
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  const std::size_t unit = static_cast<std::size_t>(alignment);
  void* memory = std::aligned_alloc(unit, (size + unit - 1) / unit * unit);
  if (memory == nullptr) std::abort();
  nibble::count_allocation(memory);
  return memory;
}
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new[](std::size_t size, std::align_val_t alignment) { return operator new(size, alignment); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return operator new(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return operator new(size); }

void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  nibble::live.fetch_sub(malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { operator delete(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { operator delete(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { operator delete(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { operator delete(memory); }
void operator delete[](void* memory) noexcept { operator delete(memory); }
void operator delete[](void* memory, std::size_t) noexcept { operator delete(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { operator delete(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { operator delete(memory); }
