// The load that server_load measures, reduced: what is counted, not how fast it was.
#include "server/load/front_end.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace nibble
