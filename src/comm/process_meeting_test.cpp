#include "comm/process_meeting.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "comm/process_test_util.h"

namespace nibble {
namespace {

constexpr const char* secret = "0123456789abcdef";

std::vector<MeetingTerms> alike(int processes) {
  return std::vector<MeetingTerms>(static_cast<std::size_t>(processes),
                                   {.same = {{"dtype", "bfloat16"}}, .least = {7}});
}

TEST(ProcessMeeting, EachIsConnectedToEachAndTheSmallestNumbersCount) {
  for (const int count : {2, 3, 4, 8}) {
    std::vector<MeetingTerms> terms = alike(count);
    for (int i = 0; i < count; ++i) terms[static_cast<std::size_t>(i)].least = {100 - i, i, 5};
    std::vector<Result<MetProcesses>> all = meet_all(meetings_of(count, LinkKey(secret)), terms);
    for (int i = 0; i < count; ++i) {
      Result<MetProcesses>& met = all[static_cast<std::size_t>(i)];
      ASSERT_TRUE(met.ok()) << met.status().message();
      EXPECT_EQ(met->least, (std::vector<std::int64_t>{101 - count, 0, 5}));
      ASSERT_EQ(met->sockets.size(), static_cast<std::size_t>(count));
      for (int j = 0; j < count; ++j) EXPECT_EQ(met->sockets[static_cast<std::size_t>(j)].is_open(), i != j);
    }
    // What i sends to j comes from i.
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j < count; ++j) {
        if (i == j) continue;
        const int word = 10 * i + j;
        int came = -1;
        ASSERT_TRUE(all[static_cast<std::size_t>(i)]
                        ->sockets[static_cast<std::size_t>(j)]
                        .send(std::as_bytes(std::span(&word, 1)))
                        .ok());
        ASSERT_TRUE(all[static_cast<std::size_t>(j)]
                        ->sockets[static_cast<std::size_t>(i)]
                        .receive(std::as_writable_bytes(std::span(&came, 1)))
                        .ok());
        EXPECT_EQ(came, word);
      }
    }
  }
}

TEST(ProcessMeeting, GpusAreOfOneHostAndEachIsOneProcesss) {
  std::vector<MeetingTerms> terms = alike(2);
  terms[0].host = terms[1].host = "a";
  terms[0].devices = {"0", "1"};
  terms[1].devices = {"2", "3"};
  for (const Result<MetProcesses>& met : meet_all(meetings_of(2), terms)) {
    ASSERT_TRUE(met.ok()) << met.status().message();
    EXPECT_NE(met->handles, nullptr);
  }
  const auto refused = [&](const char* says) {
    for (const Result<MetProcesses>& met : meet_all(meetings_of(2), terms)) {
      ASSERT_FALSE(met.ok());
      EXPECT_NE(met.status().message().find(says), std::string::npos) << met.status().message();
    }
  };
  terms[1].devices = {"1", "2"};
  refused(
      "process 1 takes GPU 1, and so does process 0; let each see GPUs of its own (CUDA_VISIBLE_DEVICES)");
  terms[1].host = "b";
  refused(
      "process 1 is on another host than process 0, whose GPUs cannot write its GPUs' memory; --all-reduce "
      "nccl");
}

TEST(ProcessMeeting, WhoDiffersIsToldInWhatAndSoIsTheFirst) {
  std::vector<MeetingTerms> terms = alike(2);
  terms[1].same = {{"dtype", "int8"}};
  for (const Result<MetProcesses>& met : meet_all(meetings_of(2), terms)) {
    ASSERT_FALSE(met.ok());
    EXPECT_NE(met.status().message().find("process 1 has dtype int8, and process 0 has bfloat16"),
              std::string::npos)
        << met.status().message();
  }
  terms = alike(2);
  terms[1].same.clear();
  for (const Result<MetProcesses>& met : meet_all(meetings_of(2), terms))
    EXPECT_NE(met.status().message().find("another nibble"), std::string::npos) << met.status().message();
}

TEST(ProcessMeeting, AnotherWorldSizeOrATakenPlaceIsRefused) {
  std::vector<Meeting> meetings = meetings_of(2);
  meetings[1].place.count = 4;
  for (const Result<MetProcesses>& met : meet_all(meetings, alike(2)))
    EXPECT_NE(met.status().message().find("there are 4 processes, and process 0 2"), std::string::npos)
        << met.status().message();
  meetings = meetings_of(3);
  meetings[2].place.index = 1;
  const std::vector<Result<MetProcesses>> all = meet_all(meetings, alike(3));
  EXPECT_NE(all[0].status().message().find("there are two of process 1"), std::string::npos)
      << all[0].status().message();
}

TEST(ProcessMeeting, WhoHoldsAnotherKeyIsNobodyAndWhoIsMissingIsNamed) {
  std::vector<Meeting> meetings = meetings_of(3, LinkKey(secret));
  meetings[2].key = LinkKey("another key, long enough");
  for (Meeting& each : meetings) each.patience = std::chrono::milliseconds(1500);
  const std::vector<Result<MetProcesses>> all = meet_all(meetings, alike(3));
  EXPECT_NE(all[0].status().message().find("of 3 processes these have not come"), std::string::npos);
  EXPECT_NE(all[0].status().message().find(": 2"), std::string::npos) << all[0].status().message();
  EXPECT_NE(all[2].status().message().find("holds another key"), std::string::npos)
      << all[2].status().message();
}

TEST(ProcessMeeting, StrangersDoNotHoldItUpForLong) {
  const std::vector<Meeting> meetings = meetings_of(2, LinkKey(secret));
  std::atomic<bool> done = false;
  std::thread stranger([&] {
    while (!done) {
      Result<LinkSocket> socket =
          LinkSocket::connect(meetings[0].first, LinkSocket::Clock::now() + std::chrono::milliseconds(200));
      if (!socket.ok()) continue;
      const std::string text = "GET / HTTP/1.1\r\nHost: a rank\r\n\r\nand so on, more than a greeting has";
      static_cast<void>(socket->send(std::as_bytes(std::span(text))));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  const auto begin = LinkSocket::Clock::now();
  for (const Result<MetProcesses>& met : meet_all(meetings, alike(2)))
    EXPECT_TRUE(met.ok()) << met.status().message();
  EXPECT_LT(LinkSocket::Clock::now() - begin, std::chrono::seconds(15));
  done = true;
  stranger.join();
}

TEST(LinkKey, AFileHasAtLeastSixteenBytesAndItsLastLineEndDoesNotCount) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "a_link_key";
  const auto write = [&](const std::string& text) { std::ofstream(file, std::ios::binary) << text; };
  write("too short\n");
  const Result<LinkKey> brief = LinkKey::from_file(file);
  EXPECT_NE(brief.status().message().find("has 9 bytes; give at least 16"), std::string::npos);
  write(std::string(secret) + "\n");
  const Result<LinkKey> key = LinkKey::from_file(file);
  ASSERT_TRUE(key.ok());
  const LinkKey::Nonce a = LinkKey::draw_nonce(), b = LinkKey::draw_nonce();
  EXPECT_NE(a, b);
  const LinkKey same(secret), other("0123456789abcdeF");
  EXPECT_TRUE(key->proves(same.prove(LinkKey::Side::caller, a, b), LinkKey::Side::caller, a, b));
  EXPECT_FALSE(key->proves(same.prove(LinkKey::Side::called, a, b), LinkKey::Side::caller, a, b));
  EXPECT_FALSE(key->proves(same.prove(LinkKey::Side::caller, b, a), LinkKey::Side::caller, a, b));
  EXPECT_FALSE(key->proves(other.prove(LinkKey::Side::caller, a, b), LinkKey::Side::caller, a, b));
  std::filesystem::remove(file);
  EXPECT_FALSE(LinkKey::from_file(file).ok());
}

TEST(LinkSocket, AHostThatIsNotKnownIsTriedAgainAndThenNamed) {
  const auto begin = LinkSocket::Clock::now();
  const Result<LinkSocket> socket = LinkSocket::connect({.host = "no-such-host.invalid", .port = 1},
                                                        begin + std::chrono::milliseconds(300));
  EXPECT_NE(socket.status().message().find("the host \"no-such-host.invalid\" is not known"),
            std::string::npos)
      << socket.status().message();
  EXPECT_GE(LinkSocket::Clock::now() - begin, std::chrono::milliseconds(200))
      << "it may be known in a moment";
}

TEST(LinkAddress, AreAHostAndAPort) {
  EXPECT_EQ(*LinkAddress::parse("10.0.0.1:5000"), (LinkAddress{"10.0.0.1", 5000}));
  EXPECT_EQ(*LinkAddress::parse("[::1]:80"), (LinkAddress{"::1", 80}));
  EXPECT_EQ(LinkAddress::parse("[::1]:80")->text(), "[::1]:80");
  for (const char* const wrong : {"", "host", ":1", "host:", "host:0", "host:70000", "host:1x", "::1:80"})
    EXPECT_FALSE(LinkAddress::parse(wrong).ok()) << wrong;
  EXPECT_TRUE(LinkAddress::parse("localhost:1")->is_loopback());
  EXPECT_FALSE(LinkAddress::parse("10.0.0.1:1")->is_loopback());
}

}  // namespace
}  // namespace nibble
