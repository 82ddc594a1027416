#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/descriptor.h"
#include "base/quote.h"
#include "tensor/buffer.h"

namespace nibble {
namespace {

// One mapping as the signal handler sees it. begin is published last and cleared first, so that a handler
// that finds it non-zero finds the end as well.
struct Slot {
  std::atomic<std::uintptr_t> begin{0};  // 0: free
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> damaged{false};
};
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

// More shards than any model has; a file beyond is read instead of mapped.
constexpr std::size_t max_mappings = 1024;

constexpr std::size_t huge_page = std::size_t{2} << 20;

struct Registry {
  std::array<Slot, max_mappings> slots;
  std::mutex mutex;  // of claiming and releasing; the handler takes none
  struct sigaction previous {};
  std::uintptr_t page_size = 4096;
  bool installed = false;
};
Registry registry;

// Async-signal-safe: atomics, a system call and sigaction only.
void on_sigbus(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (info->si_code > 0) {  // a fault, not a signal somebody sent
    for (Slot& slot : registry.slots) {
      const std::uintptr_t begin = slot.begin.load();
      if (begin == 0 || address < begin || address >= slot.end.load()) continue;
      void* page = static_cast<std::byte*>(info->si_addr) - address % registry.page_size;
      // The bare system call: libc promises nothing of its wrapper inside a handler.
      const long zeros = syscall(SYS_mmap, page, registry.page_size, PROT_READ,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0L);
      if (zeros == -1) break;
      slot.damaged.store(true);
      errno = saved_errno;
      return;
    }
  }
  if ((registry.previous.sa_flags & SA_SIGINFO) != 0 && registry.previous.sa_sigaction != nullptr) {
    registry.previous.sa_sigaction(signal, info, context);
  } else if (registry.previous.sa_handler != SIG_DFL && registry.previous.sa_handler != SIG_IGN) {
    registry.previous.sa_handler(signal);
  } else if (registry.previous.sa_handler == SIG_DFL || info->si_code > 0) {  // a fault cannot be ignored
    // The default ends the process. A fault comes again when the handler returns; a sent signal does not.
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    sigaction(SIGBUS, &standard, nullptr);
    if (info->si_code <= 0) raise(SIGBUS);
  }
  errno = saved_errno;
}

// Null when all slots are taken or the handler cannot be installed.
Slot* claim_slot(const void* begin, std::size_t size) {
  const std::lock_guard lock(registry.mutex);
  if (!registry.installed) {
    registry.page_size = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action {};
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, nullptr, &registry.previous) != 0) return nullptr;
    if (sigaction(SIGBUS, &action, nullptr) != 0) return nullptr;
    registry.installed = true;
  }
  for (Slot& slot : registry.slots) {
    if (slot.begin.load() != 0) continue;
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    slot.damaged.store(false);
    // Whole pages: the rest of the last one belongs to the mapping too.
    slot.end.store(address + (size + registry.page_size - 1) / registry.page_size * registry.page_size);
    slot.begin.store(address);
    return &slot;
  }
  return nullptr;
}

// Whether most of a range is in the page cache, by looking at a byte in each step. It asks without waiting
// for the disk, and needs no right to write the file, which mincore() wants for a true answer.
bool is_cached(int fd, std::size_t offset, std::size_t size) {
  constexpr std::size_t step = std::size_t{1} << 20;
  std::size_t looks = 0, hits = 0;
  for (std::size_t at = offset; at < offset + size; at += step) {
    char byte = 0;
    iovec place{.iov_base = &byte, .iov_len = 1};
    ++looks;
    hits += preadv2(fd, &place, 1, static_cast<off_t>(at), RWF_NOWAIT) == 1;
  }
  return hits * 10 >= looks * 9;
}

std::string system_reason(int error) { return std::strerror(error); }

// Bytes of a file from `offset` on; it had `size` of them.
Status read_exactly(int fd, std::size_t offset, std::span<std::byte> to, std::size_t size,
                    const std::filesystem::path& path) {
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t got = pread(fd, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("cannot read " + quote(path.native()) + ": " + system_reason(errno));
    if (got == 0) {
      return io_error(quote(path.native()) + " shrank from " + std::to_string(size) + " to at most " +
                      std::to_string(offset + done) + " bytes while it was being read");
    }
    done += static_cast<std::size_t>(got);
  }
  return {};
}

}  // namespace

struct MappedFile::State {
  State(std::filesystem::path file_path, Descriptor file)
      : path(std::move(file_path)), descriptor(std::move(file)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (mapping == nullptr) return;
    if (slot != nullptr) {
      const std::lock_guard lock(registry.mutex);
      slot->begin.store(0);
    }
    munmap(mapping, size);
  }

  std::filesystem::path path;
  Descriptor descriptor;
  std::size_t size = 0;
  struct timespec modified {};
  // One of the two holds the bytes.
  void* mapping = nullptr;
  Slot* slot = nullptr;
  Buffer copy;
};

MappedFile::MappedFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
MappedFile::MappedFile(MappedFile&&) noexcept = default;
MappedFile& MappedFile::operator=(MappedFile&&) noexcept = default;
MappedFile::~MappedFile() = default;

Result<MappedFile> MappedFile::open(const std::filesystem::path& path, FileAccess access) {
  const std::string name = quote(path.native());
  // Without O_NONBLOCK opening a named pipe would wait for a writer.
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor.get() < 0) {
    const int error = errno;
    const std::string message = "cannot open " + name + ": " + system_reason(error);
    return error == ENOENT || error == ENOTDIR ? not_found(message) : io_error(message);
  }
  struct stat facts {};
  if (fstat(descriptor.get(), &facts) != 0)
    return io_error("cannot stat " + name + ": " + system_reason(errno));
  if (!S_ISREG(facts.st_mode)) return broken_model(name + " is not a regular file");

  auto state = std::make_unique<State>(path, std::move(descriptor));
  state->size = static_cast<std::size_t>(facts.st_size);
  state->modified = facts.st_mtim;
  if (state->size == 0) return MappedFile(std::move(state));
  const int fd = state->descriptor.get();
  if (access == FileAccess::map_or_read) {
    void* mapping = mmap(nullptr, state->size, PROT_READ, MAP_SHARED, fd, 0);
    if (mapping != MAP_FAILED) {
      state->mapping = mapping;
      // Best effort: a file system that can gives huge pages to what it reads from now on, or has read so.
      (void)madvise(mapping, state->size, MADV_HUGEPAGE);
      state->slot = claim_slot(mapping, state->size);
      if (state->slot != nullptr) return MappedFile(std::move(state));
      munmap(mapping, state->size);
      state->mapping = nullptr;
    }
  }
  NIBBLE_ASSIGN(state->copy, Buffer::allocate(state->size));
  NIBBLE_RETURN_IF_ERROR(read_exactly(fd, 0, {state->copy.data(), state->size}, state->size, path));
  return MappedFile(std::move(state));
}

std::span<const std::byte> MappedFile::bytes() const {
  if (state_->mapping != nullptr) return {static_cast<const std::byte*>(state_->mapping), state_->size};
  return {state_->copy.data(), state_->size};
}

Status MappedFile::read(std::size_t offset, std::span<std::byte> to) const {
  NIBBLE_CHECK(offset <= state_->size && to.size() <= state_->size - offset);
  if (state_->mapping != nullptr)
    return read_exactly(state_->descriptor.get(), offset, to, state_->size, state_->path);
  if (!to.empty()) std::memcpy(to.data(), state_->copy.data() + offset, to.size());
  return {};
}

std::size_t MappedFile::map_cached(std::size_t offset, std::size_t size) const {
  NIBBLE_CHECK(offset % huge_page == 0);
  if (state_->mapping == nullptr || offset >= state_->size) return 0;
  size = std::min(size, state_->size - offset);
  if (!is_cached(state_->descriptor.get(), offset, size)) return 0;
  // A kernel before 5.14 does not know the advice; then steps fault pages in.
  constexpr int populate_read = 22;
  return madvise(static_cast<std::byte*>(state_->mapping) + offset, size, populate_read) == 0 ? size : 0;
}

void MappedFile::release(std::span<const std::byte> part) const {
  if (state_->mapping == nullptr || part.empty()) return;
  const std::uintptr_t page = registry.page_size;
  const auto begin = reinterpret_cast<std::uintptr_t>(part.data());
  const std::uintptr_t first = (begin + page - 1) / page * page, last = (begin + part.size()) / page * page;
  if (first < last) (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

const std::filesystem::path& MappedFile::path() const { return state_->path; }
bool MappedFile::is_mapped() const { return state_->mapping != nullptr; }

Status MappedFile::intact() const {
  if (state_->mapping == nullptr) return {};
  // A step asks this, so the words are only made when there is something to say.
  const auto name = [this] { return quote(state_->path.native()); };
  constexpr const char* remedy = "; leave a model's files alone while it is loaded, and start again";
  struct stat facts {};
  if (fstat(state_->descriptor.get(), &facts) != 0) {
    return io_error("cannot stat " + name() + ": " + system_reason(errno));
  }
  const auto size = static_cast<std::size_t>(facts.st_size);
  if (size != state_->size) {
    return io_error(name() + " changed from " + std::to_string(state_->size) + " to " + std::to_string(size) +
                    " bytes after it was opened" + remedy);
  }
  if (state_->slot->damaged.load()) {
    return io_error("a part of " + name() + " could not be read: the file shrank or its disk failed" +
                    remedy);
  }
  if (facts.st_mtim.tv_sec != state_->modified.tv_sec || facts.st_mtim.tv_nsec != state_->modified.tv_nsec) {
    return io_error(name() + " was written to after it was opened" + remedy);
  }
  return {};
}

}  // namespace nibble
