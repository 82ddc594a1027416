// nibble serve: the OpenAI API over HTTP.
#include <csignal>
#include <memory>
#include <optional>
#include <thread>

#include "app/commands.h"
#include "app/loaded_model.h"
#include "app/progress.h"
#include "app/version.h"
#include "base/quote.h"
#include "server/api/service.h"

namespace nibble {
namespace {

struct Options {
  EngineOptions engine;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string served_name;
  std::string api_key;
  int max_queue = 256;
  int shutdown_timeout = 30;
};

// SIGINT and SIGTERM, taken by a thread that does nothing else, so that what they lead to may do anything.
// They must be blocked before other threads begin.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGUSR1);  // ours, to end the thread
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  ~Signals() {
    if (thread_.joinable()) {
      pthread_kill(thread_.native_handle(), SIGUSR1);
      thread_.join();
    }
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // on_signal(1), then on_signal(2) and so on.
  void watch(std::function<void(int)> on_signal) {
    thread_ = std::thread([this, on_signal = std::move(on_signal)] {
      for (int count = 1;; ++count) {
        int number = 0;
        if (sigwait(&set_, &number) != 0 || number == SIGUSR1) return;
        on_signal(count);
      }
    });
  }

 private:
  sigset_t set_;
  std::thread thread_;
};

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

void print_ready(const Options& options, const ModelInfo& model, int port, Console& console) {
  for (const EngineChoice& choice : model.choices) {
    std::fprintf(console.err, "%-14s %s (%s)\n", choice.field.c_str(), choice.value.c_str(),
                 choice.why.c_str());
  }
  std::fprintf(console.err, "weights        %.2f GiB; context %d tokens; %d sequences at once\n",
               static_cast<double>(model.weight_bytes) / (1 << 30), model.max_model_len,
               options.engine.max_num_seqs);
  std::fprintf(console.out, "http://%s:%d\n", options.host.c_str(), port);
  std::fflush(console.out);
}

Status run(Options options, Console& console) {
  Signals signals;
  if (!is_loopback(options.host) && options.api_key.empty()) {
    std::fprintf(console.err, "warning: %s is reachable by others and --api-key is not set\n",
                 options.host.c_str());
  }
  NIBBLE_ASSIGN(const std::unique_ptr<http::SocketServer> server,
                http::SocketServer::listen(options.host, options.port, {}));
  const SystemClock clock;
  const std::string name = options.served_name.empty() ? options.engine.model : options.served_name;
  api::Service service(*server,
                       {.served_name = name,
                        .version = NIBBLE_VERSION,
                        .api_key = options.api_key,
                        .most_waiting = options.max_queue,
                        .seed = options.engine.seed},
                       clock);
  signals.watch([&](int count) {
    server->post([&service] { service.drain(); });
    server->stop(count == 1 ? std::chrono::seconds(options.shutdown_timeout) : std::chrono::seconds(0));
  });

  Status outcome;
  std::thread loader([&] {
    ProgressBar loading("loading " + options.engine.model);
    loading.announce();
    Result<LoadedModel> loaded = load_model(options.engine);
    loading.erase();
    std::optional<ChatPrompter> chat;
    if (loaded.ok()) {
      Result<ChatPrompter> prompter = ChatPrompter::load(loaded->engine->model().folder, loaded->tokenizer);
      if (prompter.ok()) {
        chat = std::move(prompter).value();
      } else if (prompter.status().code() != StatusCode::not_found) {
        loaded = prompter.status();
      }
    }
    if (!loaded.ok()) {
      outcome = loaded.status();
      server->stop(std::chrono::seconds(0));
      return;
    }
    auto model = std::make_shared<LoadedModel>(std::move(*loaded));
    server->post([&, model, chat = std::move(chat)]() mutable {
      print_ready(options, model->engine->model(), server->port(), console);
      service.begin(std::move(model->engine),
                    {.tokenizer = std::move(model->tokenizer), .chat = std::move(chat)});
    });
  });
  server->run(service.handler());
  loader.join();
  return outcome;
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  CommandLine line;
  line.positionals = {{.name = "MODEL",
                       .help = "a directory, a name in the Hugging Face cache, or demo",
                       .target = &options->engine.model}};
  line.options = {
      {.name = "--host",
       .value = "ADDRESS",
       .help = "where to listen",
       .default_text = options->host,
       .set = string_value(options->host)},
      {.name = "--port",
       .value = "N",
       .help = "0: any free one",
       .default_text = "8000",
       .set = int_value(options->port, 0, 65535)},
      {.name = "--served-model-name",
       .value = "NAME",
       .help = "what clients call the model",
       .default_text = "MODEL",
       .set = string_value(options->served_name)},
      {.name = "--api-key",
       .value = "KEY",
       .help = "asked of every client",
       .set = string_value(options->api_key)},
      {.name = "--max-queue",
       .value = "N",
       .help = "generations that may wait; more get 429",
       .default_text = "256",
       .set = int_value(options->max_queue, 1, 900)},
      {.name = "--shutdown-timeout",
       .value = "SECONDS",
       .help = "for what runs when told to end; told twice: none",
       .default_text = "30",
       .set = int_value(options->shutdown_timeout, 0, 86400)},
  };
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
