// The load that server_load measures, reduced: what is counted, not how fast it was.
#include "server/load/front_end.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>

#include "server/load/stream_clients.h"

namespace nibble {
namespace {

const std::string tokenizer = std::string(NIBBLE_SOURCE_DIR) + "/models/demo";

void serve_all(StreamClients& clients) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (clients.open() > 0 && std::chrono::steady_clock::now() < end)
    clients.serve(std::chrono::milliseconds(50));
  EXPECT_EQ(clients.open(), 0);
}

TEST(FrontEnd, ManyStreamsEachGetEveryToken) {
  constexpr int streams = 200, tokens = 40;
  TokenTimes times(streams, tokens);
  const auto front = FrontEnd::start(tokenizer, {.sequences = streams, .groups = 4}, streams, &times);
  ASSERT_TRUE(front.ok()) << front.status().message();
  std::vector<int> next(streams, 0);
  StreamClients clients((*front)->port(), streams, [&](int client, int event) {
    EXPECT_EQ(event, next[static_cast<std::size_t>(client)]++);
    if (event < tokens) {
      EXPECT_GT(times.at(client, event).count(), 0) << "before the engine said it";
    }
  });
  for (int i = 0; i < streams; ++i) clients.begin(i, "/v1/completions", stream_request(i, tokens));
  serve_all(clients);
  for (const StreamClients::Outcome& outcome : clients.outcomes()) {
    EXPECT_EQ(outcome.status, 200);
    EXPECT_EQ(outcome.events, tokens + 1);  // and [DONE]
    EXPECT_TRUE(outcome.whole);
  }
}

TEST(FrontEnd, MoreThanItCanHoldIsRefusedWith429AndTheRestIsServedWhole) {
  constexpr int asked = 120, tokens = 10, running = 8, waiting = 16;
  const auto front = FrontEnd::start(tokenizer, {.sequences = running, .step = std::chrono::milliseconds(50)},
                                     waiting, nullptr);
  ASSERT_TRUE(front.ok()) << front.status().message();
  StreamClients clients((*front)->port(), asked, [](int, int) {});
  for (int i = 0; i < asked; ++i) clients.begin(i, "/v1/completions", stream_request(i, tokens));
  serve_all(clients);
  std::map<int, int> statuses;
  for (const StreamClients::Outcome& outcome : clients.outcomes()) {
    ++statuses[outcome.status];
    EXPECT_TRUE(outcome.whole) << outcome.status;
    if (outcome.status == 200) {
      EXPECT_EQ(outcome.events, tokens + 1);
    }
  }
  EXPECT_EQ(statuses[200] + statuses[429], asked);
  EXPECT_GE(statuses[200], waiting);
  EXPECT_GT(statuses[429], 0);
}

// What a GET of this path answers, head and body.
std::string answer_to_get(int port, const std::string& path) {
  const int handle = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(handle, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(::send(handle, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char bytes[1024];
  for (ssize_t count = 0; (count = ::recv(handle, bytes, sizeof bytes, 0)) > 0;)
    answer.append(bytes, static_cast<std::size_t>(count));
  ::close(handle);
  return answer;
}

TEST(FrontEnd, HealthSaysDegradedWhereSomethingRunsThatAGateRefuses) {
  const GateResult open{.name = "cuda_driver", .found = "13.0.0", .status = GateStatus::ok};
  GateResult overridden{.name = "nccl", .found = "2.28.3", .status = GateStatus::known_bad};
  overridden.overridden = true;
  const struct {
    std::vector<GateResult> gates;
    const char* body;
  } cases[] = {{{open}, R"({"status":"ok"})"},
               {{open, overridden}, R"({"status":"degraded","degraded":["nccl"]})"}};
  for (const auto& each : cases) {
    const auto front = FrontEnd::start(tokenizer, {.gates = each.gates}, 1, nullptr);
    ASSERT_TRUE(front.ok()) << front.status().message();
    const std::string answer = answer_to_get((*front)->port(), "/health");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 ")) << answer;
    EXPECT_TRUE(answer.ends_with(each.body)) << answer;
  }
}

}  // namespace
}  // namespace nibble
