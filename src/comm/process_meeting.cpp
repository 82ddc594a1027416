#include "comm/process_meeting.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>

namespace nibble {
namespace {

using Clock = LinkSocket::Clock;
using std::chrono::milliseconds;

// Of a single word of somebody who has connected: strangers may do so and say nothing.
constexpr milliseconds patience_with_strangers{2000};

// --- Messages: lists of strings ---

using Words = std::vector<std::string>;
constexpr std::uint32_t most_words = 256, most_bytes = 1 << 16;

void put(std::vector<std::byte>& bytes, std::uint32_t number) {
  const auto* const begin = reinterpret_cast<const std::byte*>(&number);
  bytes.insert(bytes.end(), begin, begin + sizeof number);
}

Status say(const LinkSocket& socket, const Words& words) {
  std::vector<std::byte> bytes;
  put(bytes, static_cast<std::uint32_t>(words.size()));
  for (const std::string& word : words) {
    put(bytes, static_cast<std::uint32_t>(word.size()));
    const auto* const begin = reinterpret_cast<const std::byte*>(word.data());
    bytes.insert(bytes.end(), begin, begin + word.size());
  }
  return socket.send(bytes);
}

Result<std::uint32_t> hear_number(const LinkSocket& socket, std::uint32_t most) {
  std::uint32_t number = 0;
  NIBBLE_RETURN_IF_ERROR(socket.receive(std::as_writable_bytes(std::span(&number, 1))));
  if (number > most) return io_error("what came is no message");
  return number;
}

Result<Words> hear(const LinkSocket& socket) {
  NIBBLE_ASSIGN(const std::uint32_t count, hear_number(socket, most_words));
  Words words(count);
  for (std::string& word : words) {
    NIBBLE_ASSIGN(const std::uint32_t size, hear_number(socket, most_bytes));
    word.resize(size);
    NIBBLE_RETURN_IF_ERROR(socket.receive(std::as_writable_bytes(std::span(word.data(), word.size()))));
  }
  return words;
}

template <class Number>
std::optional<Number> number_of(const std::string& word) {
  Number number = 0;
  const char* const end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data(), end, number);
  if (error != std::errc() || at != end) return {};
  return number;
}

// --- Who connects shows the key, and is shown it ---

struct Greeting {
  std::array<char, 8> magic{'n', 'i', 'b', 'b', 'l', 'e', '1', '\n'};
  LinkKey::Nonce nonce{};
};

Status exchange_proofs(const LinkSocket& socket, const LinkKey& key, LinkKey::Side own_side) {
  socket.limit_receives(patience_with_strangers);
  socket.limit_sends(patience_with_strangers);
  Greeting own, other;
  own.nonce = LinkKey::draw_nonce();
  NIBBLE_RETURN_IF_ERROR(socket.send(std::as_bytes(std::span(&own, 1))));
  NIBBLE_RETURN_IF_ERROR(socket.receive(std::as_writable_bytes(std::span(&other, 1))));
  if (other.magic != own.magic) return io_error("what answers there is no rank of nibble's");
  const bool calls = own_side == LinkKey::Side::caller;
  const LinkKey::Nonce &of_caller = calls ? own.nonce : other.nonce,
                       &of_called = calls ? other.nonce : own.nonce;
  const LinkKey::Side other_side = calls ? LinkKey::Side::called : LinkKey::Side::caller;
  // The caller shows first, so that nobody gets a proof who has none.
  const LinkKey::Proof shown = key.prove(own_side, of_caller, of_called);
  LinkKey::Proof proof{};
  if (calls) NIBBLE_RETURN_IF_ERROR(socket.send(std::span(shown)));
  const Status came = socket.receive(std::as_writable_bytes(std::span(proof)));
  if (!came.ok() || !key.proves(proof, other_side, of_caller, of_called))
    return invalid_argument("the other process holds another key; give all the same --dist-key-file");
  if (!calls) NIBBLE_RETURN_IF_ERROR(socket.send(std::span(shown)));
  return {};
}

// The next that shows the key; strangers are let go.
Result<LinkSocket> accept_known(const LinkSocket& listening, const LinkKey& key, Clock::time_point until) {
  while (true) {
    NIBBLE_ASSIGN(LinkSocket socket, listening.accept(until));
    if (exchange_proofs(socket, key, LinkKey::Side::called).ok()) return socket;
  }
}

Result<LinkSocket> connect_known(const LinkAddress& to, const LinkKey& key, Clock::time_point until) {
  NIBBLE_ASSIGN(LinkSocket socket, LinkSocket::connect(to, until));
  if (const Status known = exchange_proofs(socket, key, LinkKey::Side::caller); !known.ok())
    return known.with_context(to.text());
  return socket;
}

// --- What processes tell each other ---

struct Introduction {
  ProcessPlace place;
  LinkAddress address;  // where it listens to processes behind it
  MeetingTerms terms;
};

Words words_of(const Introduction& one) {
  Words words = {std::to_string(one.place.index),
                 std::to_string(one.place.count),
                 one.address.host,
                 std::to_string(one.address.port),
                 one.terms.host,
                 std::to_string(one.terms.devices.size()),
                 std::to_string(one.terms.same.size())};
  words.insert(words.end(), one.terms.devices.begin(), one.terms.devices.end());
  for (const auto& [name, value] : one.terms.same) {
    words.push_back(name);
    words.push_back(value);
  }
  for (const std::int64_t number : one.terms.least) words.push_back(std::to_string(number));
  return words;
}

std::optional<Introduction> introduction_of(const Words& words) {
  constexpr std::size_t fixed = 7;
  if (words.size() < fixed) return {};
  const auto index = number_of<int>(words[0]), count = number_of<int>(words[1]),
             port = number_of<int>(words[3]);
  const auto devices = number_of<std::size_t>(words[5]), same = number_of<std::size_t>(words[6]);
  if (!index || !count || !port || !devices || *devices > words.size() - fixed || !same ||
      *same > (words.size() - fixed - *devices) / 2)
    return {};
  Introduction one{.place = {*index, *count}, .address = {words[2], *port}, .terms = {.host = words[4]}};
  std::size_t at = fixed;
  for (; at < fixed + *devices; ++at) one.terms.devices.push_back(words[at]);
  for (const std::size_t end = at + 2 * *same; at < end; at += 2)
    one.terms.same.emplace_back(words[at], words[at + 1]);
  for (; at < words.size(); ++at) {
    const auto number = number_of<std::int64_t>(words[at]);
    if (!number) return {};
    one.terms.least.push_back(*number);
  }
  return one;
}

std::string process_name(int index) { return "process " + std::to_string(index); }

// Why it cannot be one of them; empty: it can.
std::string objection(const Introduction& other, const Introduction& first,
                      std::span<const std::optional<LinkSocket>> come) {
  const std::string name = process_name(other.place.index);
  if (other.place.count != first.place.count)
    return name + " says that there are " + std::to_string(other.place.count) + " processes, and process 0 " +
           std::to_string(first.place.count) + "; give all the same --nnodes";
  if (other.place.index < 1 || other.place.index >= first.place.count)
    return name + " is none of " + std::to_string(first.place.count) + "; --node-rank goes from 0 to " +
           std::to_string(first.place.count - 1);
  if (come[static_cast<std::size_t>(other.place.index)])
    return "there are two of " + name + "; give each another --node-rank";
  if (other.terms.same.size() != first.terms.same.size() ||
      other.terms.least.size() != first.terms.least.size())
    return name + " is another nibble than process 0; start the same program everywhere";
  if (other.terms.host != first.terms.host)
    return name +
           " is on another host than process 0, whose GPUs cannot write its GPUs' memory; --all-reduce nccl "
           "joins GPUs of several hosts";
  for (std::size_t i = 0; i < first.terms.same.size(); ++i) {
    const auto& [what, own] = first.terms.same[i];
    if (other.terms.same[i] != first.terms.same[i])
      return name + " has " + what + " " + other.terms.same[i].second + ", and process 0 has " + own +
             "; start all from the same program, model and options";
  }
  return {};
}

// The same of GPUs that another has taken; [devices of each process that has come].
std::string taken(const Introduction& other, std::span<const std::vector<std::string>> devices) {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for (const std::string& each : other.terms.devices) {
      if (std::ranges::count(devices[i], each) == 0) continue;
      return process_name(other.place.index) + " takes GPU " + each + ", and so does " +
             process_name(static_cast<int>(i)) +
             "; let each see GPUs of its own (CUDA_VISIBLE_DEVICES), or all see those of all";
    }
  }
  return {};
}

Status missing(std::span<const std::optional<LinkSocket>> come, const LinkAddress& first) {
  std::string who;
  for (std::size_t i = 1; i < come.size(); ++i) {
    if (!come[i]) who += (who.empty() ? "" : ", ") + std::to_string(i);
  }
  return io_error("of " + std::to_string(come.size()) + " processes these have not come to " + first.text() +
                  ": " + who);
}

// What names this meeting, which nobody can guess.
std::string drawn_name() {
  constexpr char digits[] = "0123456789abcdef";
  std::string name;
  for (const std::byte each : LinkKey::draw_nonce()) {
    name += digits[std::to_integer<unsigned>(each) >> 4];
    name += digits[std::to_integer<unsigned>(each) & 15];
  }
  return name;
}

// All have met, so the others come at once.
Status join_handles(const Meeting& meeting, const MeetingTerms& terms, const std::string& world,
                    MetProcesses& met) {
  if (terms.host.empty()) return {};
  const auto until = Clock::now() + std::min<Clock::duration>(meeting.patience, std::chrono::seconds(10));
  NIBBLE_ASSIGN(met.handles, HandleExchange::join(meeting.place, world, until));
  return {};
}

Result<MetProcesses> meet_as_first(const Meeting& meeting, const MeetingTerms& terms) {
  const auto until = Clock::now() + meeting.patience;
  const Introduction own{.place = meeting.place, .address = meeting.first, .terms = terms};
  NIBBLE_ASSIGN(const LinkSocket listening, LinkSocket::listen(meeting.first));
  const auto count = static_cast<std::size_t>(meeting.place.count);
  std::vector<std::optional<LinkSocket>> come(count);
  std::vector<LinkAddress> addresses(count);
  std::vector<std::int64_t> least = terms.least;
  std::vector<std::vector<std::string>> devices(count);
  devices[0] = terms.devices;
  for (std::size_t missed = count - 1; missed > 0;) {
    Result<LinkSocket> socket = accept_known(listening, meeting.key, until);
    if (!socket.ok()) return missing(come, meeting.first);
    const Result<Words> words = hear(*socket);
    const std::optional<Introduction> other =
        words.ok() ? introduction_of(*words) : std::optional<Introduction>();
    if (!other) continue;
    std::string why = objection(*other, own, come);
    if (why.empty()) why = taken(*other, devices);
    if (!why.empty()) {
      static_cast<void>(say(*socket, {"refused", why}));
      return invalid_argument(why);
    }
    for (std::size_t i = 0; i < least.size(); ++i) least[i] = std::min(least[i], other->terms.least[i]);
    const auto index = static_cast<std::size_t>(other->place.index);
    addresses[index] = other->address;
    devices[index] = other->terms.devices;
    come[index] = std::move(*socket);
    --missed;
  }
  Words reply = {"met"};
  for (const std::int64_t number : least) reply.push_back(std::to_string(number));
  for (std::size_t i = 1; i < count; ++i) {
    reply.push_back(addresses[i].host);
    reply.push_back(std::to_string(addresses[i].port));
  }
  const std::string world = drawn_name();
  reply.push_back(world);
  MetProcesses met{.sockets = std::vector<LinkSocket>(count), .least = std::move(least), .handles = {}};
  for (std::size_t i = 1; i < count; ++i) {
    NIBBLE_RETURN_IF_ERROR(say(*come[i], reply));
    met.sockets[i] = std::move(*come[i]);
  }
  NIBBLE_RETURN_IF_ERROR(join_handles(meeting, terms, world, met));
  return met;
}

Result<MetProcesses> meet_first(const Meeting& meeting, const MeetingTerms& terms) {
  const auto until = Clock::now() + meeting.patience;
  const auto count = static_cast<std::size_t>(meeting.place.count);
  MetProcesses met{.sockets = std::vector<LinkSocket>(count), .least = {}, .handles = {}};
  NIBBLE_ASSIGN(LinkSocket first, connect_known(meeting.first, meeting.key, until));
  // The others reach it where the first does.
  NIBBLE_ASSIGN(LinkAddress own, first.address());
  own.port = 0;
  NIBBLE_ASSIGN(const LinkSocket listening, LinkSocket::listen(own));
  NIBBLE_ASSIGN(own, listening.address());
  NIBBLE_RETURN_IF_ERROR(say(first, words_of({.place = meeting.place, .address = own, .terms = terms})));
  first.limit_receives(meeting.patience);  // until all have come
  const Result<Words> reply = hear(first);
  if (!reply.ok()) return reply.status().with_context("process 0 at " + meeting.first.text());
  if (reply->size() == 2 && reply->front() == "refused") return invalid_argument(reply->back());
  const std::size_t numbers = terms.least.size();
  if (reply->size() != 1 + numbers + 2 * (count - 1) + 1)
    return io_error("process 0 sent no list of processes");
  for (std::size_t i = 0; i < numbers; ++i)
    met.least.push_back(number_of<std::int64_t>((*reply)[1 + i]).value_or(0));
  met.sockets[0] = std::move(first);
  const auto index = static_cast<std::size_t>(meeting.place.index);
  for (std::size_t i = 1; i < index; ++i) {
    const std::size_t at = 1 + numbers + 2 * (i - 1);
    const LinkAddress address{(*reply)[at], number_of<int>((*reply)[at + 1]).value_or(0)};
    NIBBLE_ASSIGN(LinkSocket socket, connect_known(address, meeting.key, until));
    NIBBLE_RETURN_IF_ERROR(say(socket, {std::to_string(index)}));
    met.sockets[i] = std::move(socket);
  }
  for (std::size_t missed = count - 1 - index; missed > 0;) {
    NIBBLE_ASSIGN(LinkSocket socket, accept_known(listening, meeting.key, until));
    const Result<Words> words = hear(socket);
    const std::optional<std::size_t> who =
        words.ok() && words->size() == 1 ? number_of<std::size_t>(words->front()) : std::nullopt;
    if (!who || *who <= index || *who >= count || met.sockets[*who].is_open()) continue;
    met.sockets[*who] = std::move(socket);
    --missed;
  }
  NIBBLE_RETURN_IF_ERROR(join_handles(meeting, terms, reply->back(), met));
  return met;
}

}  // namespace

Result<MetProcesses> meet(const Meeting& meeting, const MeetingTerms& terms) {
  NIBBLE_ASSIGN(MetProcesses met,
                meeting.place.index == 0 ? meet_as_first(meeting, terms) : meet_first(meeting, terms));
  for (const LinkSocket& socket : met.sockets) {
    if (socket.is_open()) socket.limit_receives(milliseconds(0));
  }
  return met;
}

}  // namespace nibble
