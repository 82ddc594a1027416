#include "server/gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

namespace nibble {
namespace {

using http::RequestHead;

struct Told {
  std::optional<http::Response> answer;
  std::string streamed;
  bool ended = false;
  std::function<void()> gone;
};

class FakeExchange final : public http::Exchange {
 public:
  FakeExchange(http::HttpRequest request, Told& told) : request_(std::move(request)), told_(told) {}
  const http::HttpRequest& request() const override { return request_; }
  void answer(http::Response response) override { told_.answer = std::move(response); }
  void begin_stream(http::Response head) override { told_.answer = std::move(head); }
  void stream(std::string_view data) override { told_.streamed += data; }
  void end_stream() override { told_.ended = true; }
  void break_stream() override { told_.ended = true; }
  void on_gone(std::function<void()> gone) override { told_.gone = std::move(gone); }

 private:
  http::HttpRequest request_;
  Told& told_;
};

ApiKeys one_key() { return ApiKeys(std::vector<ApiKey>{{.name = "alice", .secret = "secret"}}); }

// What is behind the gate keeps exchanges until the test answers them.
struct Scene {
  explicit Scene(GateOptions options = {}) {
    log.emplace(LogOptions{.write =
                               [this](std::string_view line) {
                                 const std::lock_guard lock(mutex);
                                 lines += line;
                               }},
                clock);
    const http::Handler inner{
        .request =
            [this](std::shared_ptr<http::Exchange> exchange) { inside.push_back(std::move(exchange)); },
        .refusal = [](const http::Refusal& refusal,
                      const http::RequestHead&) { return http::Response{.status = refusal.status}; },
        .screen = {}};
    gate.emplace(std::move(options), inner, suspects.get(), *log, clock);
  }

  void ask(http::HttpRequest request, Told& told) {
    gate->handler().request(std::make_shared<FakeExchange>(std::move(request), told));
  }
  int screened(std::string method, std::string path, std::vector<http::Field> fields,
               std::string host = "localhost") {
    const auto answer = gate->handler().screen(RequestHead{.method = std::move(method),
                                                           .path = std::move(path),
                                                           .host = std::move(host),
                                                           .fields = std::move(fields)});
    return answer ? answer->status : 0;
  }
  std::string logged() {
    log.reset();
    return lines;
  }

  ManualClock clock;
  std::mutex mutex;
  std::string lines;  // guarded by mutex
  std::optional<Log> log;
  std::unique_ptr<Suspects> suspects = std::make_unique<Suspects>();
  std::optional<Gate> gate;
  std::vector<std::shared_ptr<http::Exchange>> inside;  // what is left ends while the gate is there
};

std::string field(const http::Response& response, std::string_view name) {
  for (const auto& [known, value] : response.fields) {
    if (known == name) return value;
  }
  return "";
}

http::HttpRequest post(std::string body, std::vector<http::Field> fields = {}) {
  return {
      .head = {.method = "POST", .path = "/v1/completions", .host = "localhost", .fields = std::move(fields)},
      .body = std::move(body)};
}

TEST(Gate, AsksForTheKeyEverywhereButAtProbes) {
  Scene scene({.keys = one_key()});
  EXPECT_EQ(scene.screened("GET", "/metrics", {}), 401);
  EXPECT_EQ(scene.screened("GET", "/metrics", {{"authorization", "Bearer secret"}}), 0);
  EXPECT_EQ(scene.screened("GET", "/metrics", {{"authorization", "bearer secret"}}), 0);
  for (const char* wrong : {"secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets",
                            "Bearer secretsecret", "Basic secret"})
    EXPECT_EQ(scene.screened("GET", "/metrics", {{"authorization", wrong}}), 401) << wrong;
  EXPECT_EQ(scene.screened("GET", "/metrics", {{"authorization", "Bearer secret"}, {"authorization", "x"}}),
            401);
  EXPECT_EQ(scene.screened("GET", "/health", {}), 0);
  EXPECT_EQ(scene.screened("GET", "/healthy", {}), 401);
}

TEST(Gate, RefusesNamesOfStrangers) {
  Scene scene({.allowed_hosts = {"Models.Example"}});
  EXPECT_EQ(scene.screened("GET", "/", {}, "models.example:8000"), 0);
  EXPECT_EQ(scene.screened("GET", "/", {}, "evil.com"), 403);
}

TEST(Gate, WhoeverIsRefusedCanReadWhy) {
  Scene scene({.keys = one_key(), .allowed_origins = {"https://a.example"}});
  const std::vector<http::Field> fields = {{"origin", "https://a.example"}, {"x-request-id", "mine"}};
  const http::Handler handler = scene.gate->handler();
  const RequestHead head{.method = "GET", .path = "/metrics", .host = "localhost", .fields = fields};
  const RequestHead stranger{.method = "GET", .path = "/metrics", .host = "evil.com", .fields = fields};
  for (const http::Response& response : {*handler.screen(head), *handler.screen(stranger),
                                         handler.refusal({.status = 413, .message = ""}, head)}) {
    EXPECT_EQ(field(response, "Access-Control-Allow-Origin"), "https://a.example") << response.status;
    EXPECT_EQ(field(response, "X-Request-Id"), "mine") << response.status;
  }
  EXPECT_EQ(field(handler.refusal({.status = 400, .message = ""}, {}), "X-Request-Id").substr(0, 4), "req-");
}

TEST(Gate, NewKeysTakeThePlaceOfOldOnes) {
  Scene scene({.keys = one_key()});
  scene.gate->set_keys(ApiKeys(std::vector<ApiKey>{{.name = "bob", .secret = "other"}}));
  EXPECT_EQ(scene.screened("GET", "/metrics", {{"authorization", "Bearer secret"}}), 401);
  EXPECT_EQ(scene.screened("GET", "/metrics", {{"authorization", "Bearer other"}}), 0);
}

TEST(Gate, TheLogSaysWhoAskedForWhatAndHowItEnded) {
  Scene scene({.keys = one_key()});
  Told told;
  http::HttpRequest request = post("{}", {{"authorization", "Bearer secret"}});
  request.head.client = "192.0.2.7";
  scene.ask(std::move(request), told);
  const auto facts = std::make_shared<http::AnswerFacts>();
  scene.inside[0]->describe(facts);
  scene.clock.advance(std::chrono::milliseconds(250));
  *facts = {.model = "demo",
            .prompt_tokens = 12,
            .cached_tokens = 8,
            .completion_tokens = 3,
            .first_token = scene.clock.now(),
            .finish_reason = "stop",
            .error = ""};
  scene.clock.advance(std::chrono::milliseconds(250));
  scene.inside[0]->answer({});
  scene.inside.clear();
  const std::string line = scene.logged();
  EXPECT_NE(line.find(" client=\"192.0.2.7\" key=\"alice\" method=\"POST\""), line.npos) << line;
  EXPECT_NE(line.find("seconds=0.5 model=\"demo\" prompt_tokens=12 cached_tokens=8 completion_tokens=3 "
                      "first_token_seconds=0.25 finish_reason=\"stop\""),
            line.npos)
      << line;
  EXPECT_EQ(line.find("secret"), line.npos) << line;
}

TEST(Gate, AStreamThatFailedIsLoggedAsWhatItWas) {
  Scene scene;
  Told told;
  scene.ask(post("{}"), told);
  const auto facts = std::make_shared<http::AnswerFacts>();
  scene.inside[0]->describe(facts);
  scene.inside[0]->begin_stream({});
  facts->failed_status = 504;
  facts->error = "took too long";
  scene.inside[0]->break_stream();
  scene.inside.clear();
  const std::string line = scene.logged();
  EXPECT_NE(line.find("warning request"), line.npos) << line;
  EXPECT_NE(line.find("status=504 error=\"took too long\""), line.npos) << line;
}

TEST(Gate, ProbesAndScrapesAreLoggedForDebuggersOnly) {
  Scene scene;
  Told told;
  for (const char* path : {"/health", "/ready", "/metrics", "/live"}) {
    scene.ask({.head = {.method = "GET", .path = path, .host = "localhost"}, .body = ""}, told);
    scene.inside.back()->answer({.status = 503});
  }
  scene.inside.clear();
  EXPECT_EQ(scene.logged(), "");
}

TEST(Gate, NamesAnOriginOnlyWhereItIsAllowed) {
  Scene scene({.allowed_origins = {"https://a.example"}});
  const std::vector<http::Field> preflight = {{"origin", "https://a.example"},
                                              {"access-control-request-method", "POST"}};
  EXPECT_EQ(scene.screened("OPTIONS", "/v1/models", preflight), 204);
  EXPECT_EQ(scene.screened("OPTIONS", "/v1/models",
                           {{"origin", "https://b.example"}, {"access-control-request-method", "POST"}}),
            0);
  Told allowed, other;
  scene.ask(post("{}", {{"origin", "https://a.example"}}), allowed);
  scene.ask(post("{ }", {{"origin", "https://b.example"}}), other);
  for (const auto& exchange : scene.inside) exchange->answer({});
  EXPECT_EQ(field(*allowed.answer, "Access-Control-Allow-Origin"), "https://a.example");
  EXPECT_EQ(field(*other.answer, "Access-Control-Allow-Origin"), "");
  EXPECT_EQ(field(*other.answer, "Vary"), "Origin");
}

TEST(Gate, LogsEachRequestOnceHoweverItEnds) {
  Scene scene;
  Told answered, streamed, gone, dropped;
  for (Told* told : {&answered, &streamed, &gone, &dropped}) scene.ask(post("{}"), *told);
  EXPECT_EQ(scene.gate->open(), 4);
  scene.clock.advance(std::chrono::milliseconds(1500));
  scene.inside[0]->answer({.status = 418, .body = "short"});
  scene.inside[1]->begin_stream({});
  scene.inside[1]->stream("data");
  scene.inside[1]->end_stream();
  gone.gone();
  scene.inside.clear();
  EXPECT_EQ(scene.gate->open(), 0);
  EXPECT_EQ(field(*answered.answer, "X-Request-Id").substr(0, 4), "req-");
  const std::string lines = scene.logged();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 4) << lines;
  EXPECT_NE(lines.find("status=418 bytes=5 seconds=1.5"), lines.npos) << lines;
  EXPECT_NE(lines.find("status=200 bytes=4"), lines.npos) << lines;
  EXPECT_NE(lines.find("status=499"), lines.npos) << lines;
  EXPECT_EQ(lines.find("client_id"), lines.npos) << "nobody gave one\n" << lines;
}

TEST(Gate, EveryAnswerHasItsDate) {
  Scene scene({.keys = one_key()});
  scene.clock.advance(std::chrono::seconds(784'111'777));
  constexpr const char* now = "Sun, 06 Nov 1994 08:49:37 GMT";
  Told answered, streamed;
  for (Told* told : {&answered, &streamed}) scene.ask(post("{}"), *told);
  scene.inside[0]->answer({});
  scene.inside[1]->begin_stream({});
  EXPECT_EQ(field(*answered.answer, "Date"), now);
  EXPECT_EQ(field(*streamed.answer, "Date"), now);
  const http::Handler handler = scene.gate->handler();
  EXPECT_EQ(field(handler.refusal({.status = 400, .message = ""}, {}), "Date"), now);
  EXPECT_EQ(field(*handler.screen({.method = "GET", .path = "/metrics", .host = "localhost"}), "Date"), now);
  scene.inside.clear();  // exchanges end before those they tell, and before the gate
}

TEST(Gate, TellsWhoeverAsksLateThatTheClientHasGone) {
  Scene scene;
  Told told;
  scene.ask(post("{}"), told);
  told.gone();
  bool heard = false;
  scene.inside[0]->on_gone([&] { heard = true; });
  EXPECT_TRUE(heard);
}

TEST(Gate, ARequestWhoseClientWentStaysNotedWhileTheEngineMayBeAtIt) {
  Scene scene;
  Told told;
  scene.ask(post("poison"), told);
  told.gone();
  EXPECT_EQ(scene.suspects->blame(), 1);
  Told second;
  scene.ask(post("poison"), second);
  second.gone();
  scene.clock.advance(std::chrono::seconds(10));
  Told other;
  scene.ask(post("other"), other);  // which tidies up
  scene.inside.back()->answer({});
  EXPECT_EQ(scene.suspects->blame(), 0);
}

TEST(Gate, WhoIsServedByAnEngineThatDiesStaysNotedThoughHeIsAnswered) {
  Scene scene;
  Told served, late;
  scene.ask(post("poison"), served);
  scene.gate->keep_notes();
  scene.inside.back()->answer({.status = 503});
  scene.ask(post("innocent"), late);
  scene.inside.back()->answer({.status = 503});
  EXPECT_EQ(scene.suspects->blame(), 1);
}

TEST(Gate, RefusesWhatEndedTheEngineTwice) {
  Scene scene;
  for (int death = 0; death < 2; ++death) {
    Told told;
    scene.ask(post("poison"), told);
    scene.suspects->blame();
    scene.inside.clear();
  }
  Told told;
  scene.ask(post("poison"), told);
  EXPECT_TRUE(scene.inside.empty());
  EXPECT_EQ(told.answer->status, 403);
  EXPECT_EQ(field(*told.answer, "X-Should-Retry"), "false");
}

}  // namespace
}  // namespace nibble
