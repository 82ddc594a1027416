#include "server/api/service.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "base/quote.h"
#include "server/api/event_log.h"
#include "server/api/openapi.h"
#include "server/api/request_id.h"
#include "server/api/unserved_paths.h"
#include "server/page/page.h"

namespace nibble::api {
namespace {

constexpr int work_threads = 2;
constexpr std::size_t stored_part = 8;  // of the memory of requests may stored responses hold one of so many
constexpr int least_work = 64;          // requests that may always wait for these threads

void answer_error(const std::shared_ptr<TaggedExchange>& exchange, const ApiError& error,
                  std::vector<std::pair<std::string, std::string>> fields = {}) {
  if (error.code == no_room().code) fields.emplace_back("Retry-After", "1");
  std::string body = error_body(exchange->request().head.path, error);
  exchange->answer({.status = error.status, .fields = std::move(fields), .body = std::move(body)});
}

void answer_full(const std::shared_ptr<TaggedExchange>& exchange, std::string message) {
  answer_error(
      exchange,
      {.status = 429, .type = "rate_limit_error", .message = std::move(message), .code = "queue_full"},
      {{"Retry-After", "1"}});
}

// When a model was made, as far as its files tell: seconds since 1970.
std::int64_t written_at(const std::filesystem::path& folder) {
  struct stat about {};
  return stat((folder / "config.json").c_str(), &about) == 0 ? about.st_mtime : 0;
}

ApiError unavailable(std::string message, std::string code) {
  return {.status = 503, .type = "server_error", .message = std::move(message), .code = std::move(code)};
}

bool is_json(std::string_view content_type) {
  const std::string_view kind = content_type.substr(0, content_type.find(';'));
  constexpr std::string_view wanted = "application/json";
  const std::size_t end = kind.find_last_not_of(" \t");
  if (end == std::string_view::npos || end + 1 != wanted.size()) return false;
  return std::equal(wanted.begin(), wanted.end(), kind.begin(),
                    [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b + 32 : b); });
}

// The names of fields no one here knows, as a header's value.
std::string ignored_fields(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    if (!http::is_field("X", name) || text.size() + name.size() > 1024) continue;
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

std::string_view id_prefix(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::chat: return "chatcmpl-";
    case Endpoint::completions: return "cmpl-";
    case Endpoint::responses: return "resp_";
    case Endpoint::messages: return "msg_";
  }
  return "";
}

constexpr QueryParameter items_query[] = {
    {"order", R"({"enum":["asc","desc"]})"},
    {"limit", R"({"type":"integer","minimum":1,"maximum":100})"},
    {"after", R"({"type":"string"})"},
};
constexpr QueryParameter response_query[] = {
    {"stream", R"({"type":"boolean"})"},
    {"starting_after", R"({"type":"integer","minimum":0})"},
};

}  // namespace

struct Service::Route {
  RouteInfo info;
  void (*serve)(Service& service, Exchange exchange);
  bool open = false;  // before the model is there
};

const Service::Route Service::routes[] = {
    {{.method = "GET", .path = "/health", .about = "Whether the engine answers.", .answer = "Health"},
     [](Service& s, Exchange e) { s.health(std::move(e)); },
     true},
    {{.method = "GET", .path = "/ready", .about = "Whether requests are taken.", .answer = "Health"},
     [](Service& s, Exchange e) { s.health(std::move(e)); },
     true},
    {{.method = "GET", .path = "/metrics", .about = "What the server counted, as Prometheus reads it."},
     [](Service& s, Exchange e) { s.metrics(std::move(e)); }},
    {{.method = "GET", .path = "/version", .about = "The program's version.", .answer = "Version"},
     [](Service& s, Exchange e) { s.version(std::move(e)); },
     true},
    {{.method = "GET", .path = "/openapi.json", .about = "This description.", .answer = "Description"},
     [](Service& s, Exchange e) { s.openapi(std::move(e)); }},
    {{.method = "GET", .path = "/live", .about = "What the page draws, once a second.", .answer = "Live"},
     [](Service& s, Exchange e) { s.live(std::move(e)); }},
    {{.method = "GET", .path = "/plan", .about = "What was chosen, by whom and why.", .answer = "Plan"},
     [](Service& s, Exchange e) { s.plan(std::move(e)); }},
    {{.method = "GET",
      .path = "/tokenizer_info",
      .about = "The tokenizer's configuration and the chat template.",
      .answer = "TokenizerInfo"},
     [](Service& s, Exchange e) { s.tokenizer_info(std::move(e)); }},
    {{.method = "GET", .path = "/v1/models", .about = "The models served.", .answer = "ModelList"},
     [](Service& s, Exchange e) { s.models(std::move(e)); }},
    {{.method = "GET", .path = "/v1/models/{model}", .about = "One of them.", .answer = "Model"},
     [](Service& s, Exchange e) { s.models(std::move(e)); }},
    {{.method = "POST",
      .path = "/v1/chat/completions",
      .about = "Goes on with a conversation.",
      .body = "ChatCompletionRequest",
      .answer = "ChatCompletion",
      .streams = true},
     [](Service& s, Exchange e) { s.generate(std::move(e), Endpoint::chat); }},
    {{.method = "POST",
      .path = "/v1/completions",
      .about = "Goes on with a text.",
      .body = "CompletionRequest",
      .answer = "Completion",
      .streams = true},
     [](Service& s, Exchange e) { s.generate(std::move(e), Endpoint::completions); }},
    {{.method = "POST",
      .path = "/v1/responses",
      .about = "Goes on with a conversation, in items.",
      .body = "ResponseRequest",
      .answer = "Response",
      .streams = true},
     [](Service& s, Exchange e) { s.generate(std::move(e), Endpoint::responses); }},
    {{.method = "POST",
      .path = "/v1/responses/input_tokens",
      .about = "How many tokens such a request has.",
      .body = "ResponseRequest",
      .answer = "InputTokens"},
     [](Service& s, Exchange e) { s.work(std::move(e), &Preparer::count_input_tokens); }},
    {{.method = "POST",
      .path = "/v1/responses/{response}/cancel",
      .about = "Ends a response that is made in the background.",
      .answer = "Response"},
     [](Service& s, Exchange e) { s.cancel_response(std::move(e)); }},
    {{.method = "GET",
      .path = "/v1/responses/{response}/input_items",
      .about = "What a stored response was asked.",
      .answer = "InputItems",
      .query = items_query},
     [](Service& s, Exchange e) { s.response_input_items(std::move(e)); }},
    {{.method = "GET",
      .path = "/v1/responses/{response}",
      .about = "A stored response.",
      .answer = "Response",
      .streams = true,
      .query = response_query},
     [](Service& s, Exchange e) { s.stored_response(std::move(e)); }},
    {{.method = "DELETE",
      .path = "/v1/responses/{response}",
      .about = "Forgets a stored response.",
      .answer = "DeletedResponse"},
     [](Service& s, Exchange e) { s.delete_response(std::move(e)); }},
    {{.method = "POST",
      .path = "/v1/messages",
      .about = "Goes on with a conversation, as Anthropic's API does.",
      .body = "MessageRequest",
      .answer = "Message",
      .streams = true},
     [](Service& s, Exchange e) { s.generate(std::move(e), Endpoint::messages); }},
    {{.method = "POST",
      .path = "/v1/messages/count_tokens",
      .about = "How many tokens such a request has.",
      .body = "MessageCountRequest",
      .answer = "InputTokens"},
     [](Service& s, Exchange e) { s.work(std::move(e), &Preparer::count_message_tokens); }},
    {{.method = "POST",
      .path = "/tokenize",
      .about = "Text or a conversation to token ids.",
      .body = "TokenizeRequest",
      .answer = "Tokens"},
     [](Service& s, Exchange e) { s.work(std::move(e), &Preparer::tokenize); }},
    {{.method = "POST",
      .path = "/detokenize",
      .about = "Token ids to text.",
      .body = "DetokenizeRequest",
      .answer = "Text"},
     [](Service& s, Exchange e) { s.work(std::move(e), &Preparer::detokenize); }},
};

Service::Service(http::SocketServer& server, ServiceOptions options, const Clock& clock)
    : server_(server),
      options_(std::move(options)),
      clock_(clock),
      memory_(options_.request_bytes),
      stored_(memory_, options_.request_bytes / stored_part, clock_),
      work_(std::make_unique<WorkQueue>(work_threads, std::max(options_.most_waiting, least_work))) {}

Service::~Service() {
  work_.reset();
  engine_.reset();
}

http::Handler Service::handler() {
  return {.request =
              [this](std::shared_ptr<http::Exchange> inner) {
                handle(std::make_shared<TaggedExchange>(std::move(inner)));
              },
          .refusal = [](const http::Refusal& refusal, const http::RequestHead& head) -> http::Response {
            const ApiError error{.status = refusal.status, .message = refusal.message};
            return {.status = refusal.status, .body = error_body(head.path, error)};
          }};
}

void Service::begin(std::unique_ptr<Engine> engine, ServedText text, const EngineWatch& watch) {
  step_limit_ = watch.step_limit;
  text_ = std::move(text);
  created_ = written_at(engine->model().folder);
  metrics_.emplace(options_.served_name, engine->model(), clock_);
  engine_ = std::make_unique<EngineThread>(
      std::move(engine), options_.most_waiting,
      [this](std::vector<DeliveredEvent> events) {
        server_.post([this, events = std::make_shared<std::vector<DeliveredEvent>>(std::move(events))] {
          take(std::move(*events));
        });
      },
      watch.test_idle_every);
}

void Service::abort_all() {
  aborted_ = true;
  const auto running = std::exchange(running_, {});
  for (const auto& [id, sequence] : running) {
    engine_->cancel(id);
    metrics_->end(id, Metrics::Outcome::abort);
    if (!sequence.generation->done())
      sequence.generation->fail(unavailable("the server goes down", "draining"));
  }
}

// The engine is not asked for anything: whatever it waits in may hold its locks.
void Service::fail_all(const std::string& why) {
  failed_ = true;
  for (const auto& [id, sequence] : std::exchange(running_, {})) {
    metrics_->end(id, Metrics::Outcome::abort);
    if (!sequence.generation->done()) sequence.generation->fail(unavailable(why, "engine_stopped"));
  }
}

void Service::handle(Exchange exchange) {
  const http::HttpRequest& request = exchange->request();
  std::string allowed;
  const std::string_view method =
      request.head.method == "HEAD" ? "GET" : std::string_view(request.head.method);
  if (auto file = page::file_answer(request.head.path, request.head.field("if-none-match").value_or(""))) {
    if (method == "GET") return exchange->answer(*std::move(file));
    allowed = "GET, HEAD";
  }
  if (is_unserved(request.head.path)) return answer_error(exchange, no_such_path(request.head.path));
  for (const Route& route : routes) {
    if (!route.info.matches(request.head.path, request.head.escaped_slash)) continue;
    if (route.info.method != method) {
      if (!allowed.empty()) allowed += ", ";
      allowed += route.info.method == "GET" ? "GET, HEAD" : std::string(route.info.method);
      continue;
    }
    if (!route.open) {
      const bool takes_body = !route.info.body.empty();
      if (const std::optional<ApiError> error = refused(request, takes_body))
        return answer_error(exchange, *error);
    }
    return route.serve(*this, std::move(exchange));
  }
  if (allowed.empty()) return answer_error(exchange, no_such_path(request.head.path));
  answer_error(exchange, {.status = 405, .message = "this path takes " + allowed}, {{"Allow", allowed}});
}

std::optional<ApiError> Service::refused(const http::HttpRequest& request, bool takes_body) const {
  if (!engine_) return unavailable("the model is loading", "loading");
  if (failed()) return unavailable("the engine has stopped", "engine_stopped");
  if (request.head.method != "POST") return {};
  if (draining_) return unavailable("the server is going down", "draining");
  if (!takes_body) return {};
  if (request.head.count("content-encoding") > 0 && request.head.field("content-encoding") != "identity") {
    return ApiError{.status = 415, .message = "a compressed body is not served"};
  }
  if (!is_json(request.head.field("content-type").value_or(""))) {
    return ApiError{.status = 415, .message = "the body must be JSON, with Content-Type: application/json"};
  }
  return {};
}

// Nothing that /tokenize would not tell of a conversation too, so it is as open as that is.
void Service::tokenizer_info(Exchange exchange) {
  if (text_->tokenizer_info.empty()) {
    return answer_error(
        exchange, {.status = 404, .message = "this model has no tokenizer_config.json that can be read"});
  }
  exchange->answer({.body = text_->tokenizer_info});
}

void Service::openapi(Exchange exchange) {
  std::vector<RouteInfo> infos;
  for (const Route& route : routes) infos.push_back(route.info);
  exchange->answer({.body = openapi_description(infos, options_.version)});
}

Preparer Service::preparer() {
  return {
      .text = *text_, .model = engine_->model(), .served_name = options_.served_name, .grammars = grammars_};
}

template <class Made>
void Service::on_work_queue(Exchange exchange, std::function<std::variant<Made, ApiError>()> make,
                            std::function<void(Made made)> finish) {
  using MadeOrError = std::variant<Made, ApiError>;
  const bool taken = work_->add<MadeOrError>(
      std::move(make), [this](std::function<void()> done) { server_.post(std::move(done)); },
      [exchange, finish = std::move(finish)](MadeOrError made) {
        if (const auto* error = std::get_if<ApiError>(&made)) return answer_error(exchange, *error);
        finish(std::get<Made>(std::move(made)));
      });
  if (!taken) answer_full(exchange, "too many requests wait to be read; try again later");
}

template <class Made>
void Service::work_on(Exchange exchange, Make<Made> make, std::function<void(Made made)> finish) {
  std::string body = exchange->take_body();
  std::optional<RequestMemory::Share> memory = memory_.admit(body.capacity());
  if (!memory) return answer_error(exchange, no_room());
  struct Work {
    std::string body;
    RequestMemory::Share memory;
  };
  const auto work = std::make_shared<Work>(Work{.body = std::move(body), .memory = *std::move(memory)});
  on_work_queue<Made>(
      exchange,
      [work, make = std::move(make)] { return make(std::move(work->body), std::move(work->memory)); },
      std::move(finish));
}

void Service::generate(Exchange exchange, Endpoint endpoint) {
  if (endpoint == Endpoint::responses) {
    return work_on<ParsedRequest>(
        exchange,
        [this](std::string body, RequestMemory::Share memory) {
          return preparer().parse(Endpoint::responses, std::move(body), std::move(memory));
        },
        [this, exchange](ParsedRequest parsed) { prepare_response(exchange, std::move(parsed)); });
  }
  work_on<PreparedRequest>(
      exchange,
      [this, endpoint](std::string body,
                       RequestMemory::Share memory) -> std::variant<PreparedRequest, ApiError> {
        auto parsed = preparer().parse(endpoint, std::move(body), std::move(memory));
        if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
        return preparer().prepare(std::get<ParsedRequest>(std::move(parsed)));
      },
      [this, exchange](PreparedRequest prepared) { start(exchange, std::move(prepared)); });
}

void Service::prepare_response(Exchange exchange, ParsedRequest parsed) {
  std::shared_ptr<const std::vector<Message>> before;
  if (const std::string& previous = parsed.request.response.previous; !previous.empty()) {
    const StoredResponse* found = stored_.find(previous);
    if (found == nullptr || !found->conversation) {
      return answer_error(
          exchange,
          {.message = found == nullptr ? "there is no stored response " + quote(previous) +
                                             "; send the conversation as input"
                                       : "the response " + quote(previous) + " has no answer to go on from",
           .param = "previous_response_id",
           .code = "previous_response_not_found"});
    }
    before = found->conversation;
  }
  if (!find_referred(parsed)) return answer_error(exchange, no_room());
  const auto held = std::make_shared<ParsedRequest>(std::move(parsed));
  on_work_queue<PreparedRequest>(
      exchange, [this, held, before] { return preparer().prepare(std::move(*held), before.get()); },
      [this, exchange](PreparedRequest prepared) { start(exchange, std::move(prepared)); });
}

void Service::start(Exchange exchange, PreparedRequest prepared) {
  if (failed_) return answer_error(exchange, unavailable("the engine has stopped", "engine_stopped"));
  if (aborted_) return answer_error(exchange, unavailable("the server goes down", "draining"));
  const int n = prepared.request.n;
  const bool background = prepared.request.response.background;
  if (std::string ignored = ignored_fields(prepared.request.ignored); !ignored.empty())
    exchange->tag("X-Nibble-Ignored", std::move(ignored));
  AnswerHead head{
      .id = std::string(id_prefix(prepared.request.endpoint)) + new_request_id(),
      .created =
          std::chrono::duration_cast<std::chrono::seconds>(clock_.wall_time().time_since_epoch()).count(),
      .model = options_.served_name};
  std::unique_ptr<AnswerEncoder> encoder;
  std::optional<StoredResponse> unfinished;
  std::shared_ptr<EventLog> log;
  std::string begun;
  if (prepared.request.endpoint == Endpoint::responses) {
    if (background && prepared.request.stream) {
      if (auto share = memory_.admit(0)) log = std::make_shared<EventLog>(*std::move(share));
      if (!log) return answer_error(exchange, no_room());
    }
    auto response = response_encoder(prepared.request, head, log);
    if (background) {
      begun = response->unfinished("queued");
      unfinished = StoredResponse{.json = response->unfinished("in_progress"),
                                  .input_items = prepared.request.response.input_items,
                                  .conversation = {},
                                  .running = next_id_,
                                  .if_cancelled = response->unfinished("cancelled"),
                                  .background = true,
                                  .events = log};
    }
    encoder = std::move(response);
  } else {
    encoder = make_encoder(prepared.request, head, text_->tokenizer);
  }
  const Exchange waiting = exchange;
  if (background) exchange = std::make_shared<TaggedExchange>(std::make_shared<BackgroundExchange>(log));
  const auto generation =
      std::make_shared<Generation>(exchange, std::move(prepared), std::move(encoder), text_->tokenizer);
  const RequestId first = next_id_;
  const int choices = generation->choices();
  if (choices > options_.most_waiting) {  // to ask again would not help
    return answer_error(waiting,
                        {.message = "n times the number of prompts must be at most " +
                                    std::to_string(options_.most_waiting) + ", as many as may wait here",
                         .param = "n"});
  }
  next_id_ += static_cast<RequestId>(choices);
  std::vector<Request> requests = generation->engine_requests(first, options_.seed, engine_->model());
  if (options_.request_time.count() > 0) {
    for (Request& request : requests) request.deadline = clock_.now() + options_.request_time;
  }
  std::vector<int> prompt_tokens;
  for (int i = 0; i < choices; i += n)
    prompt_tokens.push_back(static_cast<int>(requests[static_cast<std::size_t>(i)].prompt.size()));
  const int max_tokens = requests.front().sampling.max_tokens;
  if (const Status status = engine_->submit(std::move(requests)); !status.ok()) {
    if (status.code() == StatusCode::resource_exhausted) {
      return answer_full(waiting, status.message());
    }
    return answer_error(waiting, status.code() == StatusCode::invalid_argument
                                     ? bad_request(status.message())
                                     : unavailable(status.message(), "engine_stopped"));
  }
  metrics_->accept({.first = first, .prompt_tokens = prompt_tokens, .n = n, .max_tokens = max_tokens});
  for (int i = 0; i < choices; ++i) running_[first + static_cast<RequestId>(i)] = {generation, i};
  exchange->on_gone([this, first, choices] { forget(first, choices); });
  if (unfinished) {
    stored_.put(head.id, *std::move(unfinished));
    log ? log->tell(waiting, 0) : waiting->answer({.body = std::move(begun)});
  }
  generation->begin();
}

void Service::forget(RequestId first, int choices) {
  for (int i = 0; i < choices; ++i) {
    const RequestId id = first + static_cast<RequestId>(i);
    if (running_.erase(id) == 0) continue;
    engine_->cancel(id);
    metrics_->end(id, Metrics::Outcome::abort);
  }
}

void Service::take(std::vector<DeliveredEvent> events) {
  for (const DeliveredEvent& event : events) {
    const auto found = running_.find(event.request);
    if (found == running_.end()) continue;
    const Running running = found->second;
    metrics_->take(event);
    if (event.token >= 0) running.generation->note_first_token(clock_.now());
    // The next engine may well answer what this one did not; a request that ends engines is found out.
    if (event.finish == FinishReason::error && engine_->failed() && !running.generation->done())
      running.generation->fail(unavailable(event.error, "engine_stopped"));
    const Generation::After after = running.generation->take(running.choice, event);
    if (after == Generation::After::cancel_all) {
      forget(event.request - static_cast<RequestId>(running.choice), running.generation->choices());
      continue;
    }
    if (after == Generation::After::cancel) {
      engine_->cancel(event.request);
      metrics_->end(event.request, Metrics::Outcome::stop);
    }
    if (after == Generation::After::cancel || event.finish != FinishReason::none)
      running_.erase(event.request);
  }
}

void Service::work(Exchange exchange,
                   std::variant<std::string, ApiError> (Preparer::*make)(std::string body,
                                                                         RequestMemory::Share memory) const) {
  work_on<std::string>(
      exchange,
      [this, make](std::string body, RequestMemory::Share memory) {
        return (preparer().*make)(std::move(body), std::move(memory));
      },
      [exchange](std::string answer) { exchange->answer({.body = std::move(answer)}); });
}

}  // namespace nibble::api
