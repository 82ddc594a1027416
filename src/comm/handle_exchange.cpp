#include "comm/handle_exchange.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>

namespace nibble {
namespace {

using Clock = HandleSocket::Clock;

// Of a process that still opens its model's files.
constexpr std::chrono::minutes patience{5};

std::string name_of(const std::string& world, int process) {
  return "nibble-" + world + "-" + std::to_string(process);
}
std::string text_of(int process) { return "process " + std::to_string(process); }

template <class Word>
std::optional<Word> word_of(const std::vector<std::byte>& bytes) {
  Word word{};
  if (bytes.size() != sizeof word) return {};
  std::memcpy(&word, bytes.data(), sizeof word);
  return word;
}

}  // namespace

Result<std::unique_ptr<HandleExchange>> HandleExchange::join(const ProcessPlace& place,
                                                             const std::string& world,
                                                             Clock::time_point until) {
  std::unique_ptr<HandleExchange> joined(new HandleExchange(place));
  joined->sockets_.resize(static_cast<std::size_t>(place.count));
  NIBBLE_ASSIGN(const HandleSocket listening, HandleSocket::listen(name_of(world, place.index)));
  const std::int32_t own = place.index;
  for (int other = 0; other < place.index; ++other) {
    Result<HandleSocket> socket = HandleSocket::connect(name_of(world, other), until);
    if (!socket.ok())
      return socket.status().with_context(
          "the memory of " + text_of(other) +
          " (processes with GPUs are of one host, user and network namespace)");
    NIBBLE_RETURN_IF_ERROR(socket->send(std::as_bytes(std::span(&own, 1)), {}));
    joined->sockets_[static_cast<std::size_t>(other)] = std::move(*socket);
  }
  for (int missed = place.count - 1 - place.index; missed > 0;) {
    Result<HandleSocket> socket = listening.accept(until);
    if (!socket.ok())
      return io_error("of " + std::to_string(place.count) + " processes " + std::to_string(missed) +
                      " have not come for GPUs' memory; they are to be of one host, user and network "
                      "namespace");
    const Result<HandleSocket::Message> said = socket->receive(until);
    const auto who = said.ok() ? word_of<std::int32_t>(said->bytes) : std::optional<std::int32_t>();
    if (!who || *who <= place.index || *who >= place.count ||
        joined->sockets_[static_cast<std::size_t>(*who)].is_open())
      continue;
    joined->sockets_[static_cast<std::size_t>(*who)] = std::move(*socket);
    --missed;
  }
  return joined;
}

Result<std::vector<std::vector<Descriptor>>> HandleExchange::exchange(std::size_t bytes,
                                                                      std::span<const int> own) {
  const auto until = Clock::now() + patience;
  const std::uint64_t size = bytes;
  std::vector<std::vector<Descriptor>> all(sockets_.size());
  for (int other = 0; other < place_.count; ++other) {
    if (other == place_.index) continue;
    const Status sent =
        sockets_[static_cast<std::size_t>(other)].send(std::as_bytes(std::span(&size, 1)), own);
    if (!sent.ok()) return sent.with_context(text_of(other) + " does not take memory that GPUs share");
  }
  for (int other = 0; other < place_.count; ++other) {
    if (other == place_.index) continue;
    const auto at = static_cast<std::size_t>(other);
    Result<HandleSocket::Message> came = sockets_[at].receive(until);
    if (!came.ok())
      return came.status().code() == StatusCode::cancelled
                 ? internal_error(text_of(other) +
                                  " ended before it gave its GPUs' memory; its own output says why")
                 : came.status().with_context(text_of(other) + " has not given its GPUs' memory");
    const auto theirs = word_of<std::uint64_t>(came->bytes);
    if (!theirs || *theirs != size || came->files.size() != own.size())
      return internal_error(text_of(other) + " has " + std::to_string(came->files.size()) + " rooms of " +
                            std::to_string(theirs.value_or(0)) + " bytes on its GPUs, and this one " +
                            std::to_string(own.size()) + " of " + std::to_string(size) +
                            "; start all on GPUs of one kind");
    all[at] = std::move(came->files);
  }
  return Result<std::vector<std::vector<Descriptor>>>(std::move(all));
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace nibble
