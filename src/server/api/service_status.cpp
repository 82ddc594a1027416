// How the service is, and the routes that say so.
#include "base/json_writer.h"
#include "base/thread_state.h"
#include "server/api/health.h"
#include "server/api/served_model.h"
#include "server/api/service.h"
#include "server/what_ran.h"

namespace nibble::api {

std::chrono::nanoseconds Service::since_a_step() const {
  if (!engine_) return {};
  return std::chrono::steady_clock::now() - engine_->heartbeat();
}

std::string Service::hanging_step() const {
  // The engine's thread says it itself unless it is what hangs.
  constexpr std::chrono::milliseconds some_time{1000};
  if (!engine_ || engine_->failed() || since_a_step() < some_time) return {};
  return std::string(engine_->found_by_ranks().message());
}

bool Service::stands_still() const {
  constexpr std::chrono::milliseconds several_beats{2500};
  constexpr std::string_view threads[] = {"engine-steps", "engine-rank", "engine-masks", "worker"};
  // Threads may sleep while a GPU works.
  return engine_ && since_a_step() > several_beats &&
         (engine_->model().plan.device == DeviceKind::cpu || !engine_->is_in_a_step()) &&
         !some_thread_works(threads);
}

std::optional<EngineCounts> Service::counts() const {
  if (!engine_) return {};
  return engine_->counts();
}

void Service::health(Exchange exchange) {
  std::vector<std::string> degraded;
  if (engine_ != nullptr) degraded = degraded_by(engine_->model().plan, engine_->counts().ran);
  const Health health = health_of({.loaded = engine_ != nullptr,
                                   .failed = failed(),
                                   .draining = draining_,
                                   .degraded = !degraded.empty(),
                                   .since_a_step = since_a_step(),
                                   .step_limit = step_limit_});
  std::string body;
  JsonWriter json(body);
  json.begin_object().member("status", health.state);
  if (!degraded.empty()) {
    json.key("degraded").begin_array();
    for (const std::string& each : degraded) json.value(each);
    json.end_array();
  }
  json.end_object();
  exchange->answer({.status = health.status, .body = std::move(body)});
}

void Service::version(Exchange exchange) {
  std::string body;
  JsonWriter(body).begin_object().member("version", std::string_view(options_.version)).end_object();
  exchange->answer({.body = std::move(body)});
}

// What the page draws, once a second.
void Service::live(Exchange exchange) {
  const EngineCounts counts = engine_->counts();
  std::string body;
  JsonWriter(body)
      .begin_object()
      .member("running", counts.load.running)
      .member("queued", counts.load.queued)
      .member("pages", counts.load.pages)
      .member("pages_used", counts.load.pages_used)
      .member("pages_cached", counts.load.pages_cached)
      .member("prefix_queries", counts.totals.prefix_query_tokens)
      .member("prefix_hits", counts.totals.prefix_hit_tokens)
      .member("steps", counts.steps)
      .member("prompt_tokens", counts.prompt_tokens)
      .member("generated_tokens", counts.generated_tokens)
      .end_object();
  exchange->answer({.body = std::move(body)});
}

void Service::metrics(Exchange exchange) {
  exchange->answer(
      {.content_type = "text/plain; version=0.0.4; charset=utf-8",
       .body = metrics_->text(engine_->counts(),
                              {.connections = server_.connections(), .displaced = server_.displaced()},
                              grammars_.counts())});
}

void Service::models(Exchange exchange) {
  const http::RequestHead& head = exchange->request().head;
  const bool anthropic = head.count("anthropic-version") > 0;
  constexpr std::string_view all = "/v1/models";
  const bool one = head.path.size() > all.size();
  if (one && head.path.substr(all.size() + 1) != options_.served_name) {
    const ApiError error = no_such_model(options_.served_name);
    return exchange->answer(
        {.status = error.status, .body = anthropic ? error.anthropic_json() : error.json()});
  }
  const ServedModel model{
      .name = options_.served_name, .created = created_, .max_model_len = engine_->model().max_model_len};
  exchange->answer({.body = anthropic ? model.anthropic_json(!one) : model.openai_json(!one)});
}

void Service::plan(Exchange exchange) {
  Plan plan = engine_->model().plan;
  plan.choices.insert(plan.choices.end(), text_->plan_rows.begin(), text_->plan_rows.end());
  exchange->answer({.body = plan_json(plan)});
}

}  // namespace nibble::api
