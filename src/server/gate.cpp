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

// Takes as long for a wrong key as for the right one.
bool same_secret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned>(given[i] ^ secret[i % secret.size()]);
  return difference == 0;
}

std::string lowered(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  return out;
}

// Without its port, brackets and the dot that ends a full name.
std::string host_name(std::string_view host) {
  if (host.starts_with('[')) return lowered(host.substr(1, host.find(']') - 1));
  std::string name = lowered(host.substr(0, host.find(':')));
  if (name.ends_with('.')) name.pop_back();
  return name;
}

bool is_ipv4(std::string_view name) {
  return name.find_first_not_of("0123456789.") == std::string_view::npos &&
         std::count(name.begin(), name.end(), '.') == 3;
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

bool is_local_name(std::string_view host) {
  const std::string name = host_name(host);
  if (host.starts_with('[') || is_ipv4(name)) return true;
  return name.find('.') == std::string::npos || name.ends_with(".localhost");
}

// The exchange as those behind the gate see it.
class Gate::Passage final : public http::Exchange {
 public:
  Passage(Gate& gate, std::shared_ptr<http::Exchange> inner)
      : gate_(gate), inner_(std::move(inner)), id_(api::new_request_id()), start_(gate.clock_.now()) {
    ++gate_.open_;
    const http::RequestHead& head = request().head;
    origin_ = gate_.allowed_origin(head);
    if (const auto given = head.field("x-request-id"); given && api::may_echo(*given)) client_id_ = *given;
    if (const auto given = head.field("traceparent")) {
      trace_ = parse_traceparent(*given);
      if (trace_) traceparent_ = *given;
    }
  }
  ~Passage() override { end(499, false); }  // nobody answered, so the connection was closed

  const http::HttpRequest& request() const override { return inner_->request(); }

  void answer(http::Response response) override {
    sign(response);
    const int status = response.status;
    bytes_ = response.body.size();
    inner_->answer(std::move(response));
    end(status, true);
  }
  void begin_stream(http::Response head) override {
    sign(head);
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
    end(status_, true);
  }
  void on_gone(std::function<void()> gone) override {
    if (client_gone_) return gone();
    gone_ = std::move(gone);
  }

  // Whether it may go on; else it is answered.
  bool admitted() {
    if (const std::optional<ApiError> error = gate_.enter(request(), slot_)) {
      http::Response response{.status = error->status, .body = error->json()};
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
  void sign(http::Response& response) {
    complete(response, gate_.clock_);
    response.fields.emplace_back("X-Request-Id", client_id_.empty() ? "req-" + id_ : client_id_);
    if (trace_) {
      response.fields.emplace_back("traceparent", traceparent_);
      response.fields.emplace_back(
          "traceresponse", "00-" + trace_->trace_id + "-" + span_ + (trace_->sampled ? "-01" : "-00"));
    }
    if (gate_.options_.allowed_origins.empty()) return;
    response.fields.emplace_back("Vary", "Origin");
    if (!origin_.empty()) response.fields.emplace_back("Access-Control-Allow-Origin", origin_);
  }

  // The line in the log. 499, as nginx has it: the client went before its answer was whole.
  void end(int status, bool answered) {
    if (std::exchange(ended_, true)) return;
    --gate_.open_;
    gone_ = nullptr;
    gate_.leave(slot_, answered);
    const http::RequestHead& head = request().head;
    if (head.path == "/live" && status == 200) return;  // an open page asks every second
    const double seconds = std::chrono::duration<double>(gate_.clock_.now() - start_).count();
    using Given = std::optional<std::string_view>;
    gate_.log_.info("request", {{"id", id_},
                                {"client_id", client_id_.empty() ? Given() : Given(client_id_)},
                                {"method", head.method},
                                {"path", head.path},
                                {"status", status},
                                {"bytes", bytes_},
                                {"seconds", seconds},
                                {"trace_id", trace_ ? Given(trace_->trace_id) : Given()},
                                {"parent_id", trace_ ? Given(trace_->parent_id) : Given()},
                                {"span_id", trace_ ? Given(span_) : Given()}});
  }

  Gate& gate_;
  std::shared_ptr<http::Exchange> inner_;
  std::string id_;
  std::string client_id_;  // echoed, and never used
  std::string origin_;
  std::optional<TraceContext> trace_;
  std::string traceparent_;
  const std::string span_ = api::new_request_id().substr(0, 16);
  std::chrono::nanoseconds start_;
  std::function<void()> gone_;
  int slot_ = -1;
  int status_ = 0;
  std::size_t bytes_ = 0;
  bool client_gone_ = false;
  bool ended_ = false;
};

Gate::Gate(GateOptions options, http::Handler inner, Suspects* suspects, Log& log, const Clock& clock)
    : options_(std::move(options)), inner_(std::move(inner)), suspects_(suspects), log_(log), clock_(clock) {
  for (std::string& host : options_.allowed_hosts) host = lowered(host);
}

http::Handler Gate::handler() {
  return {.request = [this](std::shared_ptr<http::Exchange> exchange) { pass(std::move(exchange)); },
          .refusal =
              [this](const http::Refusal& refusal) {
                http::Response response = inner_.refusal(refusal);
                complete(response, clock_);
                log_.info("request refused", {{"status", refusal.status}, {"why", refusal.message}});
                return response;
              },
          .screen =
              [this](const http::RequestHead& head) {
                std::optional<http::Response> response = screen(head);
                if (response) complete(*response, clock_);
                return response;
              }};
}

void Gate::pass(std::shared_ptr<http::Exchange> exchange) {
  const auto passage = std::make_shared<Passage>(*this, std::move(exchange));
  Passage::watch(passage);
  if (passage->admitted()) inner_.request(passage);
}

http::Response Gate::answer_for(const http::RequestHead& head, const ApiError& error) {
  log_.info("request", {{"id", api::new_request_id()},
                        {"method", head.method},
                        {"path", head.path},
                        {"status", error.status},
                        {"why", error.message}});
  return {.status = error.status, .body = error.json()};
}

std::optional<http::Response> Gate::screen(const http::RequestHead& head) {
  if (options_.check_host && !head.host.empty() && !allowed_host(head.host)) {
    return answer_for(head,
                      {.status = 403,
                       .type = "permission_error",
                       .message = "this server is not known by the name in Host; --allowed-hosts adds names",
                       .code = "host_not_allowed"});
  }
  if (head.method == "OPTIONS" && head.count("origin") > 0 &&
      head.count("access-control-request-method") > 0) {
    if (const std::string origin = allowed_origin(head); !origin.empty()) {
      return http::Response{.status = 204,
                            .content_type = "",
                            .fields = {{"Access-Control-Allow-Origin", origin},
                                       {"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                                       {"Access-Control-Allow-Headers",
                                        "authorization, content-type, traceparent, x-request-id"},
                                       {"Access-Control-Max-Age", "600"},
                                       {"Vary", "Origin"}}};
    }
  }
  if (!is_open(head.path) && !has_key(head)) {
    http::Response response = answer_for(head, {.status = 401,
                                                .type = "authentication_error",
                                                .message = "give the API key as Authorization: Bearer KEY",
                                                .code = "invalid_api_key"});
    response.fields.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  return {};
}

bool Gate::allowed_host(std::string_view host) const {
  return is_local_name(host) || std::find(options_.allowed_hosts.begin(), options_.allowed_hosts.end(),
                                          host_name(host)) != options_.allowed_hosts.end();
}

bool Gate::has_key(const http::RequestHead& head) const {
  if (options_.api_key.empty()) return true;
  constexpr std::string_view scheme = "bearer ";
  const std::string_view given = head.field("authorization").value_or("");
  return lowered(given.substr(0, scheme.size())) == scheme &&
         same_secret(given.substr(scheme.size()), options_.api_key);
}

std::string Gate::allowed_origin(const http::RequestHead& head) const {
  const std::string_view origin = head.field("origin").value_or("");
  for (const std::string& allowed : options_.allowed_origins) {
    if (allowed == "*") return "*";
    if (allowed == origin) return allowed;
  }
  return {};
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
