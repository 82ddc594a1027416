// nibble serve: the OpenAI API over HTTP.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <thread>

#include "app/activity.h"
#include "app/commands.h"
#include "app/last_words.h"
#include "app/loaded_model.h"
#include "app/other_process.h"
#include "app/progress.h"
#include "app/pull_model.h"
#include "app/serve_options.h"
#include "app/serve_ranks.h"
#include "app/service_manager.h"
#include "app/stop_signals.h"
#include "app/supervisor.h"
#include "app/terminal.h"
#include "app/text_choices.h"
#include "app/version.h"
#include "base/thread_name.h"
#include "engine/processes.h"
#include "server/api/service.h"
#include "text/tokenizer_info.h"

namespace nibble {
namespace {

// How long a drained server waits for clients to take the last bytes.
constexpr std::chrono::milliseconds farewell{1000};
constexpr std::chrono::milliseconds look_again{20};

// Takes as many descriptors as the system grants, because each connection needs one, and leaves some for
// files, so that accepting does not fail. The default number of connections adapts to what is granted.
Status fit_connections(int& connections) {
  constexpr rlim_t for_files = 64;
  constexpr int usual = 4096;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = limit.rlim_max = 1024;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t room = limit.rlim_cur > 2 * for_files ? limit.rlim_cur - for_files : limit.rlim_cur / 2;
  if (connections == 0) {
    connections = static_cast<int>(std::clamp<rlim_t>(room, 1, usual));
  } else if (static_cast<rlim_t>(connections) > room) {
    return invalid_argument("--max-connections " + std::to_string(connections) + " is more than the " +
                            std::to_string(room) + " that the limit of " + std::to_string(limit.rlim_cur) +
                            " open files allows; give less, or raise the limit (ulimit -Hn)");
  }
  return {};
}

// Reads keys and certificate again. What cannot be read leaves the old ones in place.
void reload(const ServeOptions& options, http::SocketServer& server, Gate& gate, Log& log) {
  if (!options.api_key_file.empty()) {
    Result<ApiKeys> keys = ApiKeys::load(options.api_key, options.api_key_file);
    if (keys.ok()) {
      log.info("the API keys were read again", {{"keys", keys->size()}});
      gate.set_keys(*std::move(keys));
    } else {
      log.error("the API keys could not be read again; the old ones stay",
                {{"why", keys.status().message()}});
    }
  }
  if (!options.can_reload()) log.info("SIGHUP: there is no key file and no certificate to read again");
  if (options.tls.certificate.empty()) return;
  if (const Status status = server.replace_certificate(options.tls); status.ok()) {
    log.info("the certificate was read again");
  } else {
    log.error("the certificate could not be read again; the old one stays", {{"why", status.message()}});
  }
}

// Answers that there is no engine, while one is started again.
Status stand_in(const ServeOptions& options, const ApiKeys& keys, http::ListeningSocket socket) {
  StopSignals signals({stop_order()});
  StopSignals reloads({reload_order()});
  NIBBLE_ASSIGN(const std::unique_ptr<http::SocketServer> server,
                http::SocketServer::over(std::move(socket), options.limits(), options.tls));
  signals.watch([&](int) { server->stop(std::chrono::milliseconds(100)); });
  const SystemClock clock;
  Log log(options.log(), clock);
  const auto response = [](int status, std::string message, std::string code) -> http::Response {
    const api::ApiError error{
        .status = status, .type = "server_error", .message = std::move(message), .code = std::move(code)};
    return {.status = status, .body = error.json()};
  };
  const http::Handler nobody{
      .request =
          [&](const std::shared_ptr<http::Exchange>& exchange) {
            http::Response answer = response(503, "the engine is being started again", "restarting");
            if (exchange->request().head.path == "/health") answer.body = R"({"status":"restarting"})";
            exchange->answer(std::move(answer));
          },
      .refusal = [&](const http::Refusal& refusal,
                     const http::RequestHead&) { return response(refusal.status, refusal.message, ""); },
      .screen = {}};
  Gate gate(options.gate(keys), nobody, nullptr, log, clock);
  reloads.watch([&](int) { server->post([&] { reload(options, *server, gate, log); }); });
  server->run(gate.handler());
  return {};
}

// One life of the engine's process: load, serve, drain.
class Serving {
 public:
  // `at_end` runs when the process ends where it stands.
  Serving(const ServeOptions& options, const ApiKeys& keys, std::unique_ptr<http::SocketServer> server,
          SharedState* shared, std::function<void()> at_end, Console& console)
      : options_(options),
        at_end_(std::move(at_end)),
        console_(console),
        shared_(shared),
        bar_("loading " + options.engine.model),
        log_(std::in_place, log_options(), clock_),
        server_(std::move(server)),
        service_(*server_,
                 {.served_name = options.served_name.empty() ? options.engine.model : options.served_name,
                  .version = NIBBLE_VERSION,
                  .most_waiting = options.max_queue,
                  .seed = options.engine.seed,
                  .request_time = std::chrono::seconds(options.request_timeout)},
                 clock_),
        gate_(options.gate(keys), service_.handler(), shared != nullptr ? &shared->suspects : nullptr, *log_,
              clock_),
        activity_(*log_) {}

  Status run() {
    load_moved_ = clock_.now();
    loader_ = std::thread([this] { load(); });
    look();
    report();
    server_->run(gate_.handler());
    if (failed_check_) LastWords::die();
    if (abandoned_) {
      // A load or a step of the engine may take long, and nobody waits for what comes of it.
      log_.reset();
      if (at_end_) at_end_();
      std::fflush(nullptr);
      std::_Exit(outcome_.exit_code());
    }
    loader_.join();
    return outcome_;
  }

  // From any thread. The first order drains, the second ends.
  void stop(int orders) {
    server_->post([this, orders] {
      if (orders > 1 || !begun_) return give_up();
      if (std::exchange(draining_, true)) return;
      log_->info("draining", {{"requests", gate_.open()}, {"seconds", options_.shutdown_timeout}});
      notify_service_manager("STOPPING=1");
      drain_until_ = clock_.now() + std::chrono::seconds(options_.shutdown_timeout);
      service_.drain();
      drain();
    });
  }

  // From any thread.
  void reread() {
    server_->post([this] { reload(options_, *server_, gate_, *log_); });
  }

  // From any thread: the process was stopped, and may go on only to say so.
  void fail_as_stopped() {
    server_->post([this] {
      if (!abandoned_) abandon("the engine's process was stopped and is given up");
    });
  }

  // From any thread: another one failed a check, and waits.
  void fail_check() {
    server_->post([this] {
      if (abandoned_) return;
      failed_check_ = true;
      fail("the engine failed a check and cannot go on");
    });
  }

 private:
  void load() {
    name_this_thread("loader");
    bar_.announce();
    Result<LoadedModel> loaded = load_model(options_.engine, [&](double done, double total) {
      load_moved_ = clock_.now();
      bar_.update(done, total);
    });
    bar_.erase();
    std::optional<ChatPrompter> chat;
    std::string info;
    api::SamplingDefaults sampling;
    if (loaded.ok() && options_.model_sampling) {
      if (Result<api::SamplingDefaults> read = api::read_sampling_defaults(loaded->engine->model().folder);
          read.ok()) {
        sampling = std::move(read).value();
      } else {
        loaded = read.status();
      }
    }
    if (loaded.ok()) {
      if (Result<std::string> told = tokenizer_info(loaded->engine->model().folder); told.ok())
        info = std::move(told).value();
      Result<ChatPrompter> prompter =
          ChatPrompter::load(loaded->engine->model().folder, loaded->tokenizer, options_.date);
      if (prompter.ok()) {
        chat = std::move(prompter).value();
      } else if (prompter.status().code() != StatusCode::not_found) {
        loaded = prompter.status();
      }
    }
    if (!loaded.ok()) {
      server_->post([this, status = loaded.status()] {
        outcome_ = status;
        server_->stop(farewell);
      });
      return;
    }
    auto model = std::make_shared<LoadedModel>(std::move(*loaded));
    server_->post([this, model, chat = std::move(chat), info = std::move(info), sampling]() mutable {
      if (abandoned_) return;
      begun_ = true;
      in_use_ = std::move(model->in_use);
      const DeviceKind device = model->engine->model().plan.device;
      step_limit_ = options_.step_limit(device);
      const bool first = shared_ == nullptr || !shared_->served.exchange(true);
      std::vector<Choice> rows = text_choices(model->tokenizer, chat ? &*chat : nullptr);
      rows.push_back(sampling_choice(sampling, options_.model_sampling));
      if (first) print_ready(model->engine->model(), rows);
      service_.begin(std::move(model->engine),
                     {.tokenizer = std::move(model->tokenizer),
                      .chat = std::move(chat),
                      .tokenizer_info = std::move(info),
                      .sampling = sampling,
                      .renders_client_templates = options_.trust_request_chat_template,
                      .date = options_.date,
                      .plan_rows = std::move(rows)},
                     {.step_limit = step_limit_, .test_idle_every = options_.self_test_interval(device)});
      if (!first) log_->info("the engine serves again");
      notify_service_manager("READY=1");
    });
  }

  LogOptions log_options() {
    LogOptions options = options_.log();
    options.write = [this](std::string_view line) { bar_.print_above(line); };
    return options;
  }

  void print_ready(const ModelInfo& model, const std::vector<Choice>& text_rows) const {
    constexpr int widest = std::numeric_limits<int>::max();
    const int columns = is_terminal(STDERR_FILENO) ? terminal_columns(STDERR_FILENO) : widest;
    Plan plan = model.plan;
    plan.choices.insert(plan.choices.end(), text_rows.begin(), text_rows.end());
    std::fprintf(console_.err, "%s", startup_text(plan, columns).c_str());
    std::fprintf(console_.err, "%-24s%.2f GiB\n", "weights",
                 static_cast<double>(model.weight_bytes) / (1 << 30));
    std::fprintf(console_.err, "%-24s%s tokens\n", "KV cache", grouped(model.kv_tokens).c_str());
    std::fprintf(console_.err, "%-24s%.2fx for %s tokens a request, at most %d in a step\n", "concurrency",
                 static_cast<double>(model.kv_tokens) / model.max_model_len,
                 grouped(model.max_model_len).c_str(), model.plan.max_num_seqs);
    std::fprintf(console_.out, "%s\n", options_.url(server_->port()).c_str());
    std::fflush(console_.out);
  }

  // Until every request is answered, or time is up.
  void drain() {
    if (abandoned_) return;
    if (gate_.open() == 0) return server_->stop(farewell);
    if (clock_.now() >= drain_until_) return give_up();
    server_->after(look_again, [this] { drain(); });
  }

  // Every stream gets its last event now.
  void give_up() {
    abandoned_ = true;
    log_->info("ending at once", {{"requests", gate_.open()}});
    service_.drain();
    service_.abort_all();
    server_->stop(farewell);
  }

  // Whether the engine is still there. One that failed answered so to all it ran; the process goes too, for
  // nothing would come of it any more. Nor would anything of one that hangs in a step, or in its load.
  void look() {
    if (service_.failed() && outcome_.ok()) {
      outcome_ = internal_error("the engine failed and cannot go on");
      log_->error("the engine failed and cannot go on", {{"reason", service_.failure()}});
      abandoned_ = true;
      service_.drain();
      server_->stop(farewell);
    }
    if (!abandoned_ && step_limit_.count() > 0 && service_.since_a_step() > step_limit_)
      fail("the engine hangs: a step takes longer than --step-timeout " +
           std::to_string(step_limit_.count()));
    if (const std::string why = service_.hanging_step(); !abandoned_ && !why.empty())
      fail("the engine hangs: " + why);
    // Seen more than once: threads may sleep at the same moment by chance, or wake up together.
    constexpr int looks = 3;
    still_looks_ = service_.stands_still() ? still_looks_ + 1 : 0;
    if (!abandoned_ && still_looks_ >= looks) fail("the engine hangs: none of its threads does anything");
    const std::chrono::seconds load_limit(options_.load_timeout);
    const bool loads = !begun_ && outcome_.ok();
    if (!abandoned_ && loads && load_limit.count() > 0 && clock_.now() - load_moved_.load() > load_limit)
      fail("the load hangs: nothing has come for longer than --load-timeout " +
           std::to_string(load_limit.count()));
    server_->after(std::chrono::milliseconds(500), [this] { look(); });
  }

  // The engine will not say so itself: whom it serves is told, and the process ends. Any of them may be why.
  void fail(const std::string& why) {
    gate_.keep_notes();
    abandon(why);
  }

  void abandon(const std::string& why) {
    outcome_ = internal_error(why);
    log_->error(why, {{"requests", gate_.open()}});
    abandoned_ = true;
    service_.fail_all(why);
    // Probes that come now are told at once, and do not wait for the next process.
    server_->after(farewell / 2, [this] { server_->stop(farewell / 2); });
  }

  void report() {
    if (const std::optional<EngineCounts> counts = service_.counts())
      activity_.report(*counts, std::chrono::duration<double>(Activity::period).count());
    server_->after(Activity::period, [this] { report(); });
  }

  const ServeOptions& options_;
  const std::function<void()> at_end_;
  Console& console_;
  SharedState* const shared_;
  const SystemClock clock_;
  ProgressBar bar_;  // of the load, during which probes are answered and logged
  std::optional<Log> log_;
  const std::unique_ptr<http::SocketServer> server_;
  api::Service service_;
  Gate gate_;
  Activity activity_;
  std::thread loader_;
  std::atomic<std::chrono::nanoseconds> load_moved_{};  // when the load last said how far it is
  // On the I/O thread.
  Status outcome_;
  bool begun_ = false;
  bool draining_ = false;
  bool abandoned_ = false;
  bool failed_check_ = false;
  int still_looks_ = 0;  // one after the other at which the engine stood still
  std::chrono::seconds step_limit_{0};
  FileLock in_use_;  // of the model's folder
  std::chrono::nanoseconds drain_until_{0};
};

// Between the start of the processes and their end.
Status serve(const ServeOptions& options, const Child& self, const ApiKeys& keys,
             http::ListeningSocket socket, const std::function<void()>& at_end, Console& console) {
  if (self.role == ChildRole::stand_in) return stand_in(options, keys, std::move(socket));
  std::optional<LastWords> last_words;  // without a parent a debugger may want the failure itself
  if (self.shared != nullptr) last_words.emplace();
  std::optional<StopSignals> signals, reloads, failures;
  if (self.shared != nullptr) {
    signals.emplace({stop_order()});
    reloads.emplace({reload_order()});
    failures.emplace({fail_order()});
  } else {
    signals.emplace({SIGINT, SIGTERM});
    reloads.emplace({SIGHUP});
  }
  const StartTerminal terminal;
  NIBBLE_ASSIGN(std::unique_ptr<http::SocketServer> server,
                http::SocketServer::over(std::move(socket), options.limits(), options.tls));
  Serving serving(options, keys, std::move(server), self.shared, at_end, console);
  signals->watch([&](int orders) { serving.stop(orders); });
  reloads->watch([&](int) { terminal.is_gone() ? serving.stop(1) : serving.reread(); });
  if (last_words) last_words->watch([&] { serving.fail_check(); });
  if (failures) failures->watch([&](int) { serving.fail_as_stopped(); });
  const Status outcome = serving.run();
  failures.reset();
  last_words.reset();  // like the next, before what they order about
  reloads.reset();
  signals.reset();
  return outcome;
}

Status run(ServeOptions& options, Console& console) {
  NIBBLE_RETURN_IF_ERROR(check(options));
  NIBBLE_ASSIGN(options.engine, options_of_process(options.engine));
  if (follows(options.engine)) return serve_ranks(options, console);
  NIBBLE_RETURN_IF_ERROR(offer_pull(options.engine.model, console));
  NIBBLE_ASSIGN(ApiKeys keys, ApiKeys::load(options.api_key, options.api_key_file));
  if (!is_loopback(options.host) && !keys.asked_for()) {
    std::fprintf(console.err,
                 "warning: %s is reachable by others and neither --api-key nor --api-key-file is set\n",
                 options.host.c_str());
  }
  std::signal(SIGPIPE, SIG_IGN);  // a broken pipe is an error of the write
  NIBBLE_RETURN_IF_ERROR(fit_connections(options.max_connections));
  NIBBLE_ASSIGN(http::ListeningSocket socket,
                http::ListeningSocket::open(options.host, options.port, options.socket_mode));
  const std::optional<http::SocketFile> file = socket.file();
  const auto remove_file = [&] {
    if (file) file->remove();
  };
  if (options.no_supervise) {
    const Status outcome = serve(options, {}, keys, std::move(socket), remove_file, console);
    remove_file();
    return outcome;
  }
  SupervisorOptions supervisor{.shutdown_timeout = std::chrono::seconds(options.shutdown_timeout),
                               .log = options.log(),
                               .reload = {},
                               .at_end = remove_file};
  if (options.can_reload()) {
    supervisor.reload = [&] {
      Result<ApiKeys> read = ApiKeys::load(options.api_key, options.api_key_file);
      if (read.ok()) keys = *std::move(read);  // the children say what is wrong
    };
  }
  const Child self = supervise(supervisor);
  return serve(options, self, keys, std::move(socket), {}, console);
}

CommandLine declare() {
  auto options = std::make_shared<ServeOptions>();
  CommandLine line;
  line.positionals = {{.name = "MODEL",
                       .help = "a directory, a name in the Hugging Face cache, or demo",
                       .target = &options->engine.model}};
  line.options = serve_option_specs(*options);
  line.add(engine_option_specs(options->engine));
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command serve_command{.name = "serve",
                            .summary = "OpenAI API over HTTP",
                            .example = "nibble serve demo --port 8000",
                            .declare = declare};

}  // namespace nibble
