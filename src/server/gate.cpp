#include "server/gate.h"

#include <algorithm>

#include "server/api/request_id.h"
#include "server/page/page.h"
#include "server/trace_context.h"

namespace nibble {
namespace {

using api::ApiError;

// How long the engine may still be at a request whose client went.
constexpr std::chrono::seconds leaving_time{2};

// What needs no key: probes, and the page, which has nothing secret and asks for the key.
bool is_open(std::string_view path) { return path == "/health" || path == "/ready" || page::is_file(path); }

std::string lowered(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  return out;
}

// Asked by programs at intervals, so that their lines would hide the others.
bool is_probe(std::string_view path) {
  return path == "/health" || path == "/ready" || path == "/metrics" || path == "/live";
}

using Given = std::optional<std::string_view>;
Given if_any(std::string_view text) { return text.empty() ? Given() : Given(text); }

http::Response error_response(const http::RequestHead& head, const ApiError& error) {
  return {.status = error.status, .body = api::error_body(head.path, error)};
}

// What every answer has, whoever made it.
void complete(http::Response& response, const Clock& clock) {
  response.fields.emplace_back("Date",
                               http::date_text(std::chrono::floor<std::chrono::seconds>(clock.wall_time())));
  const bool has = std::any_of(response.fields.begin(), response.fields.end(),
                               [](const auto& field) { return field.first == "Retry-After"; });
  if (response.status == 503 && !has) response.fields.emplace_back("Retry-After", "1");
}

}  // namespace

// By which ids a request is known, who sent it, and what every answer to it says of that.
class Gate::Caller {
 public:
  Caller(const Gate& gate, const http::RequestHead& head)
      : gate_(gate), id_(api::new_request_id()), start_(gate.clock_.now()) {
    if (const auto given = head.field("x-request-id"); given && api::may_echo(*given)) client_id_ = *given;
    if (const auto given = head.field("traceparent")) {
      trace_ = parse_traceparent(*given);
      if (trace_) traceparent_ = *given;
    }
    if (const auto name = gate.key_name(head)) key_ = *name;
  }

  void sign(const http::RequestHead& head, http::Response& response) const {
    complete(response, gate_.clock_);
    std::string id = client_id_.empty() ? "req-" + id_ : client_id_;
    if (api::speaks_anthropic(head.path)) response.fields.emplace_back("Request-Id", id);
    response.fields.emplace_back("X-Request-Id", std::move(id));
    if (trace_) {
      response.fields.emplace_back("traceparent", traceparent_);
      response.fields.emplace_back(
          "traceresponse", "00-" + trace_->trace_id + "-" + span_ + (trace_->sampled ? "-01" : "-00"));
    }
    gate_.origins_.mark(head, response);
  }

  // The line of the access log.
  void log(const http::RequestHead& head, int status, std::size_t bytes, std::string_view error,
           const http::AnswerFacts& facts) const {
    const bool refused = status == 401 || status == 403;
    const LogLevel level = is_probe(head.path) && !refused ? LogLevel::debug
                           : status >= 500                 ? LogLevel::warning
                                                           : LogLevel::info;
    gate_.log_.write(
        level, "request",
        {{"id", id_},
         {"client_id", if_any(client_id_)},
         {"client", if_any(head.client)},
         {"key", if_any(key_)},
         {"method", if_any(head.method)},
         {"path", if_any(head.path)},
         {"status", status},
         {"error", if_any(error)},
         {"bytes", bytes},
         {"seconds", seconds_until(gate_.clock_.now())},
         {"model", if_any(facts.model)},
         {"prompt_tokens", facts.prompt_tokens},
         {"cached_tokens", facts.cached_tokens},
         {"completion_tokens", facts.completion_tokens},
         {"first_token_seconds",
          facts.first_token ? std::optional(seconds_until(*facts.first_token)) : std::optional<double>()},
         {"format", if_any(facts.format)},
         {"finish_reason", if_any(facts.finish_reason)},
         {"trace_id", trace_ ? Given(trace_->trace_id) : Given()},
         {"parent_id", trace_ ? Given(trace_->parent_id) : Given()},
         {"span_id", trace_ ? Given(span_) : Given()}});
  }

 private:
  double seconds_until(std::chrono::nanoseconds time) const {
    return std::chrono::duration<double>(time - start_).count();
  }

  const Gate& gate_;
  std::string id_;
  std::string client_id_;  // echoed, and never used
  std::string key_;        // the name of the key that was given
  std::optional<TraceContext> trace_;
  std::string traceparent_;
  const std::string span_ = api::new_request_id().substr(0, 16);
  std::chrono::nanoseconds start_;
};

// The exchange as those behind the gate see it.
class Gate::Passage final : public http::Exchange {
 public:
  Passage(Gate& gate, std::shared_ptr<http::Exchange> inner)
      : gate_(gate), inner_(std::move(inner)), caller_(gate, request().head) {
    ++gate_.open_;
  }
  ~Passage() override { end(499, false); }  // nobody answered, so the connection was closed

  const http::HttpRequest& request() const override { return inner_->request(); }
  std::string take_body() override { return inner_->take_body(); }

  void answer(http::Response response) override {
    caller_.sign(request().head, response);
    const int status = response.status;
    bytes_ = response.body.size();
    inner_->answer(std::move(response));
    end(status, true);
  }
  void begin_stream(http::Response head) override {
    caller_.sign(request().head, head);
    status_ = head.status;
    inner_->begin_stream(std::move(head));
  }
  void stream(std::string_view data) override {
    bytes_ += data.size();
    inner_->stream(data);
  }
  void end_stream() override {
    inner_->end_stream();
    end(status_, true);
  }
  void break_stream() override {
    inner_->break_stream();
    // The client has read 200 and then the error; the log has the error's status.
    end(facts_ && facts_->failed_status != 0 ? facts_->failed_status : 500, true);
  }
  void describe(std::shared_ptr<const http::AnswerFacts> facts) override { facts_ = std::move(facts); }
  void on_gone(std::function<void()> gone) override {
    if (client_gone_) return gone();
    gone_ = std::move(gone);
  }

  // Whether it may go on; else it is answered.
  bool admitted() {
    if (const std::optional<ApiError> error = gate_.enter(request(), slot_)) {
      http::Response response = error_response(request().head, *error);
      if (error->status == 403) response.fields.emplace_back("X-Should-Retry", "false");
      answer(std::move(response));
      return false;
    }
    return true;
  }
  // Apart from the constructor, for it refers to this object.
  static void watch(const std::shared_ptr<Passage>& passage) {
    passage->inner_->on_gone([weak = std::weak_ptr<Passage>(passage)] {
      const std::shared_ptr<Passage> self = weak.lock();
      if (!self) return;
      self->client_gone_ = true;
      if (self->gone_) std::exchange(self->gone_, nullptr)();
      self->end(499, false);
    });
  }

 private:
  // The line in the log. 499, as nginx has it: the client went before its answer was whole.
  void end(int status, bool answered) {
    if (std::exchange(ended_, true)) return;
    --gate_.open_;
    gone_ = nullptr;
    gate_.leave(slot_, answered);
    const http::AnswerFacts none;
    const http::AnswerFacts& facts = facts_ ? *facts_ : none;
    caller_.log(request().head, status, bytes_, facts.error, facts);
  }

  Gate& gate_;
  std::shared_ptr<http::Exchange> inner_;
  const Caller caller_;
  std::shared_ptr<const http::AnswerFacts> facts_;
  std::function<void()> gone_;
  int slot_ = -1;
  int status_ = 0;
  std::size_t bytes_ = 0;
  bool client_gone_ = false;
  bool ended_ = false;
};

Gate::Gate(GateOptions options, http::Handler inner, Suspects* suspects, Log& log, const Clock& clock)
    : keys_(std::move(options.keys)),
      origins_(std::move(options.allowed_origins)),
      hosts_(std::move(options.allowed_hosts)),
      check_host_(options.check_host),
      inner_(std::move(inner)),
      suspects_(suspects),
      log_(log),
      clock_(clock) {}

http::Handler Gate::handler() {
  return {.request = [this](std::shared_ptr<http::Exchange> exchange) { pass(std::move(exchange)); },
          .refusal = [this](const http::Refusal& refusal,
                            const http::RequestHead& head) { return refuse(refusal, head); },
          .screen = [this](const http::RequestHead& head) { return screen(head); }};
}

void Gate::pass(std::shared_ptr<http::Exchange> exchange) {
  const auto passage = std::make_shared<Passage>(*this, std::move(exchange));
  Passage::watch(passage);
  if (passage->admitted()) inner_.request(passage);
}

http::Response Gate::refuse(const http::Refusal& refusal, const http::RequestHead& head) {
  http::Response response = inner_.refusal(refusal, head);
  const Caller caller(*this, head);
  caller.sign(head, response);
  caller.log(head, response.status, response.body.size(), refusal.message, {});
  return response;
}

std::optional<http::Response> Gate::screen(const http::RequestHead& head) {
  std::string why;
  std::optional<http::Response> response = judge(head, why);
  if (!response) return {};
  const Caller caller(*this, head);
  // A preflight names the origin itself.
  response->status == 204 ? complete(*response, clock_) : caller.sign(head, *response);
  caller.log(head, response->status, response->body.size(), why, {});
  return response;
}

// The answer to whoever may not ask, with why; and to a browser that wants to know whether a page may.
std::optional<http::Response> Gate::judge(const http::RequestHead& head, std::string& why) const {
  if (check_host_ && !head.host.empty() && !hosts_.allows(head.host)) {
    why = "this server is not known by the name in Host; --allowed-hosts adds names, or use its address";
    return error_response(
        head, {.status = 403, .type = "permission_error", .message = why, .code = "host_not_allowed"});
  }
  if (std::optional<http::Response> preflight = origins_.preflight(head)) return preflight;
  if (!is_open(head.path) && !key_name(head)) {
    why = "give the API key as Authorization: Bearer KEY, or as X-Api-Key: KEY";
    http::Response response = error_response(
        head, {.status = 401, .type = "authentication_error", .message = why, .code = "invalid_api_key"});
    response.fields.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  return {};
}

std::optional<std::string_view> Gate::key_name(const http::RequestHead& head) const {
  if (!keys_.asked_for()) return "";
  constexpr std::string_view scheme = "bearer ";
  const std::string_view given = head.field("authorization").value_or("");
  // Anthropic's clients have a header of their own. Where both are sent, as some do, the first one counts.
  if (given.empty() && head.count("x-api-key") == 1) return keys_.find(*head.field("x-api-key"));
  if (lowered(given.substr(0, scheme.size())) != scheme) return {};
  return keys_.find(given.substr(scheme.size()));
}

std::optional<ApiError> Gate::enter(const http::HttpRequest& request, int& slot) {
  while (!keeps_notes_ && !leaving_.empty() && clock_.now() - leaving_.front().second > leaving_time) {
    suspects_->leave(leaving_.front().first, false);
    leaving_.pop_front();
  }
  if (suspects_ == nullptr || keeps_notes_ || request.body.empty()) return {};
  const Suspects::Entry entry = suspects_->enter(suspects_->fingerprint(request.head.path, request.body));
  slot = entry.slot;
  switch (entry.verdict) {
    case Suspects::Verdict::enters: return {};
    case Suspects::Verdict::waits:
      return ApiError{.status = 503,
                      .type = "server_error",
                      .message =
                          "the server went down while it served this request, and tries such requests "
                          "one at a time; try again",
                      .code = "suspected_request"};
    case Suspects::Verdict::refused: break;
  }
  log_.warning("request refused: the engine died twice while it served it", {{"path", request.head.path}});
  return ApiError{.status = 403,
                  .message = "the engine went down twice while it served this request; it is not tried again",
                  .code = "request_ends_engine"};
}

void Gate::leave(int slot, bool answered) {
  if (slot < 0 || keeps_notes_) return;
  if (answered) return suspects_->leave(slot, true);
  leaving_.emplace_back(slot, clock_.now());
}

}  // namespace nibble
