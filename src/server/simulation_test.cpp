// Seeded simulation of sessions, scheduler and cache on one clock that stands still until it is moved, with
// sockets in memory: clients that drip, send ahead, close half of a connection, hang up, or ask for too much,
// while sequences run, wait, make room and run out of time. After every step the accounting of pages is
// exact; every client that stayed has one whole answer a request, with the tokens that the request gets
// alone.
//
// SIMULATIONS sets how many interleavings run, SIMULATION_SEED the first one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <string>

#include "sched/scheduler_test_util.h"
#include "server/http/session.h"

namespace nibble::http {
namespace {

using namespace std::chrono_literals;

struct Asked {
  int first = 0, prompt = 0, tokens = 0;
};

// What a client reads: answers one after the other, as far as they have come.
struct Answer {
  int status = 0;
  std::string body;
  bool whole = false;
};

std::vector<Answer> answers_in(std::string_view bytes) {
  std::vector<Answer> answers;
  while (!bytes.empty()) {
    Answer& answer = answers.emplace_back();
    const std::size_t head_end = bytes.find("\r\n\r\n");
    if (head_end == std::string_view::npos) return answers;
    const std::string_view head = bytes.substr(0, head_end);
    answer.status = std::atoi(std::string(head.substr(9, 3)).c_str());
    bytes.remove_prefix(head_end + 4);
    if (const std::size_t length = head.find("Content-Length: "); length != std::string_view::npos) {
      const std::size_t count = std::strtoul(std::string(head.substr(length + 16, 9)).c_str(), nullptr, 10);
      answer.body = bytes.substr(0, count);
      answer.whole = bytes.size() >= count;
      bytes.remove_prefix(std::min(count, bytes.size()));
      continue;
    }
    while (!answer.whole) {
      const std::size_t line = bytes.find("\r\n");
      if (line == std::string_view::npos) return answers;
      const std::size_t count = std::strtoul(std::string(bytes.substr(0, line)).c_str(), nullptr, 16);
      if (bytes.size() < line + 2 + count + 2) return answers;
      answer.body += bytes.substr(line + 2, count);
      bytes.remove_prefix(line + 2 + count + 2);
      answer.whole = count == 0;
    }
  }
  return answers;
}

struct Client {
  explicit Client(Session::Time now) : session({}, now) {}
  Session session;
  std::vector<Asked> asked;
  std::string unsent, received;
  RequestId running = 0;
  bool gone = false;    // hung up
  bool halved = false;  // sends no more
  bool late = false;    // one of its answers ran out of time
};

// A simulation that never meets a thing tells nothing of it.
struct Met {
  int whole = 0, broken = 0, refused = 0;
  std::uint64_t preemptions = 0, hits = 0;
};

class Simulation {
 public:
  Simulation(std::uint64_t seed, Met& met)
      : random_(seed),
        met_(met),
        pages_({.page_size = 8,
                .page_count = {8 + below(22), 8 + below(12)},
                .window = 20,
                .keep_prefixes = below(4) > 0,
                .key = {random_(), random_()}}),
        scheduler_(limits_of(1 + below(6), 4 + below(60), 120), pages_) {
    for (int i = 0, count = 1 + below(8); i < count; ++i) clients_.emplace_back(now_);
  }

  void run() {
    for (int round = 0; round < 300; ++round) {
      Client& client = clients_[static_cast<std::size_t>(below(static_cast<int>(clients_.size())))];
      act(client);
      if (below(3) > 0) step();
      if (below(6) == 0) now_ += std::chrono::milliseconds(below(800));
    }
    // What clients have begun they bring to an end; two rounds without anything to do are enough to know.
    for (int round = 0, quiet = 0; round < 5000 && quiet < 2; ++round) {
      for (Client& client : clients_) send(client, client.unsent.size());
      quiet = scheduler_.idle() ? quiet + 1 : 0;
      step();
    }
    for (const Client& client : clients_) check(client);
    ASSERT_TRUE(scheduler_.idle());
    met_.preemptions += scheduler_.totals().preemptions;
    met_.hits += scheduler_.totals().prefix_hit_tokens;
    for (const PageGroup group : {full_pages, window_pages}) ASSERT_EQ(pages_.used(group), 0);
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  void act(Client& client) {
    switch (below(10)) {
      case 0:
      case 1:
        if (!client.halved && client.asked.size() < 5) ask(client);
        break;
      case 2:
        if (below(5) == 0) hang_up(client);
        break;
      case 3:
        if (below(3) > 0 || !client.unsent.empty() || client.gone) break;
        client.session.receive_end();
        client.halved = true;
        pump(client);
        break;
      default: send(client, static_cast<std::size_t>(below(40)));
    }
  }

  void ask(Client& client) {
    const Asked asked{.first = 50 * below(2), .prompt = 1 + below(130), .tokens = 1 + below(30)};
    const std::string body =
        std::to_string(asked.first) + " " + std::to_string(asked.prompt) + " " + std::to_string(asked.tokens);
    client.unsent +=
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    client.asked.push_back(asked);
  }

  void send(Client& client, std::size_t count) {
    if (client.gone || client.halved || !client.session.wants_bytes()) return;
    client.session.receive(client.unsent.substr(0, count), now_);
    client.unsent.erase(0, count);
    pump(client);
  }

  void hang_up(Client& client) {
    client.gone = true;
    if (client.running != 0) scheduler_.cancel(client.running);
  }

  void pump(Client& client) {
    while (!client.gone) {
      Session::Next next = client.session.next(now_);
      if (std::holds_alternative<std::monostate>(next)) break;
      ASSERT_FALSE(std::holds_alternative<Refusal>(next));
      start(client, std::get<HttpRequest>(next).body);
    }
    client.received += client.session.take_output();
  }

  void start(Client& client, const std::string& body) {
    Asked asked;
    ASSERT_EQ(std::sscanf(body.c_str(), "%d %d %d", &asked.first, &asked.prompt, &asked.tokens), 3);
    Request request = nibble::request(++next_id_, asked.prompt, asked.tokens, asked.first);
    request.deadline = now_.time_since_epoch() + 20s;
    if (!scheduler_.submit(std::move(request)).ok()) return client.session.answer({.status = 400}, now_);
    client.running = next_id_;
    by_id_[next_id_] = &client;
    client.session.begin_stream({.content_type = "text/plain"});
  }

  void step() {
    std::vector<Event> events;
    const Batch& batch = scheduler_.plan(now_.time_since_epoch(), events);
    if (!batch.empty()) scheduler_.commit(results_of(batch), events);
    for (const Event& event : events) tell(event);
    scheduler_.check();
  }

  void tell(const Event& event) {
    ASSERT_EQ(by_id_.count(event.request), 1u) << "nothing comes after the end";
    Client& client = *by_id_.at(event.request);
    const bool ends = event.finish != FinishReason::none;
    if (ends) by_id_.erase(event.request);
    if (client.gone) return;
    if (event.token >= 0) client.session.stream(std::to_string(event.token) + " ");
    if (!ends) {
      client.received += client.session.take_output();
      return;
    }
    client.running = 0;
    client.session.stream(finish_reason_name(event.finish));
    client.late |= event.finish == FinishReason::timeout;
    client.late ? client.session.break_stream() : client.session.end_stream(now_);
    pump(client);
  }

  void check(const Client& client) {
    const std::vector<Answer> answers = answers_in(client.received);
    ASSERT_LE(answers.size(), client.asked.size());
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const Asked& asked = client.asked[i];
      const int pool = pages_.page_count(full_pages) * pages_.page_size();
      const bool fits = asked.prompt < 120 && asked.prompt <= pool;
      ASSERT_EQ(answers[i].status, fits ? 200 : 400);
      if (!answers[i].whole) {
        ASSERT_TRUE(client.gone || client.late) << "an answer is whole, or its client knows that it is not";
        ++met_.broken;
        continue;
      }
      if (!fits) {
        ++met_.refused;
        continue;
      }
      ++met_.whole;
      std::vector<TokenId> tokens = nibble::request(0, asked.prompt, 0, asked.first).prompt;
      std::string expected;
      for (int k = std::min({asked.tokens, 120 - asked.prompt, pool - asked.prompt + 1}); k > 0; --k) {
        tokens.push_back(next_token(tokens, 0));
        expected += std::to_string(tokens.back()) + " ";
      }
      ASSERT_EQ(answers[i].body, expected + "length");
    }
    ASSERT_TRUE(client.gone || client.late || answers.size() == client.asked.size());
  }

  std::mt19937_64 random_;
  Met& met_;
  Session::Time now_{};
  PageCache pages_;
  Scheduler scheduler_;
  std::deque<Client> clients_;
  std::map<RequestId, Client*> by_id_;
  RequestId next_id_ = 0;
};

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(ServerSimulation, EveryClientThatStaysGetsItsWholeAnswerAndNoPageIsLost) {
  const std::uint64_t first = setting("SIMULATION_SEED", 1);
  const std::uint64_t count = setting("SIMULATIONS", 1000);
  Met met;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Simulation(seed, met).run();
    if (!HasFailure()) continue;
    FAIL() << "seed " << seed << "; again: SIMULATION_SEED=" << seed
           << " SIMULATIONS=1 build/release/src/server/server_test --gtest_filter=ServerSimulation.*";
  }
  if (count < 100) return;
  const int least = static_cast<int>(count / 10);
  EXPECT_GT(met.whole, 10 * least);
  EXPECT_GT(met.broken, least);
  EXPECT_GT(met.refused, least);
  EXPECT_GT(met.preemptions, count / 10);
  EXPECT_GT(met.hits, count);
}

}  // namespace
}  // namespace nibble::http
