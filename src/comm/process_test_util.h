// Processes of a world as threads of a test: each has sockets of its own to each other.
#pragma once

#include <chrono>
#include <thread>
#include <vector>

#include "base/check.h"
#include "comm/process_meeting.h"

namespace nibble {

// A port that nobody has now.
inline LinkAddress free_address() {
  const Result<LinkSocket> socket = LinkSocket::listen({.host = "127.0.0.1", .port = 0});
  NIBBLE_CHECK(socket.ok(), socket.status().message());
  return *socket->address();
}

inline std::vector<Result<MetProcesses>> meet_all(const std::vector<Meeting>& meetings,
                                                  const std::vector<MeetingTerms>& terms) {
  std::vector<Result<MetProcesses>> met;
  for (std::size_t i = 0; i < meetings.size(); ++i) met.emplace_back(internal_error("it has met nobody"));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < meetings.size(); ++i)
    threads.emplace_back([&, i] { met[i] = meet(meetings[i], terms[i]); });
  for (std::thread& thread : threads) thread.join();
  return met;
}

inline std::vector<Meeting> meetings_of(int processes, const LinkKey& key = {}) {
  const LinkAddress first = free_address();
  std::vector<Meeting> meetings;
  for (int i = 0; i < processes; ++i) {
    meetings.push_back({.place = {.index = i, .count = processes},
                        .first = first,
                        .key = key,
                        .patience = std::chrono::seconds(20)});
  }
  return meetings;
}

}  // namespace nibble
