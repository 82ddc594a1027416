#include "app/serve_options.h"

#include <unistd.h>

#include <charconv>

#include "app/date_option.h"
#include "base/quote.h"

namespace nibble {
namespace {

// Several in one value, between commas.
OptionSetter list_value(std::vector<std::string>& target) {
  return text_value([&target](std::string_view text) -> Status {
    target.clear();
    while (!text.empty()) {
      const std::size_t comma = text.find(',');
      const std::string_view word = text.substr(0, comma);
      if (word.empty()) return invalid_argument("has an empty name; write names between commas");
      target.emplace_back(word);
      text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    }
    return {};
  });
}

OptionSetter mode_value(mode_t& target) {
  return text_value([&target](std::string_view text) -> Status {
    unsigned mode = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
    if (error != std::errc() || end != text.data() + text.size() || mode > 0777)
      return invalid_argument("must be permissions in octal, as 600 or 660");
    target = mode;
    return {};
  });
}

// What this machine calls itself, and what it is called in its own network.
std::vector<std::string> own_names() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return {};
  return {name, std::string(name) + ".local"};
}

// As browsers send it: a scheme and a host, perhaps a port, and nothing behind.
bool is_origin(const std::string& text) {
  if (text == "*" || text == "null") return true;
  const std::size_t scheme = text.find("://");
  if (scheme == std::string::npos || scheme == 0) return false;
  const std::string host = text.substr(scheme + 3);
  return !host.empty() && host.find_first_of("/?#@ ") == std::string::npos;
}

// Sizes and times, which few people set: the help lists them in short.
std::vector<OptionSpec> limit_specs(ServeOptions& options) {
  const auto limit = [](std::string_view name, int& target, int min, int max) {
    return OptionSpec{.name = name,
                      .value = "N",
                      .default_text = std::to_string(target),
                      .set = int_value(target, min, max),
                      .group = "Limits"};
  };
  return {
      {.name = "--max-connections",
       .value = "N",
       .default_text = "4096",
       .set = int_value(options.max_connections, 1, 1 << 20),
       .group = "Limits"},
      limit("--max-header-bytes", options.max_header_bytes, 1 << 10, 1 << 20),
      limit("--max-body-bytes", options.max_body_bytes, 1 << 10, 1 << 30),
      limit("--max-unsent-bytes", options.max_unsent_bytes, 16 << 10, 1 << 30),
      limit("--client-timeout", options.client_timeout, 1, 3600),
      limit("--keep-alive-timeout", options.keep_alive_timeout, 1, 86400),
      limit("--sse-keep-alive", options.sse_keep_alive, 0, 3600),
      limit("--request-timeout", options.request_timeout, 0, 86400),
      limit("--load-timeout", options.load_timeout, 0, 86400),
      {.name = "--step-timeout",
       .value = "N",
       .default_text = "30 on a GPU",
       .set = int_value(options.step_timeout, 0, 86400),
       .group = "Limits"},
      {.name = "--self-test-interval",
       .value = "N",
       .default_text = "60 on a GPU",
       .set = int_value(options.self_test, 0, 86400),
       .group = "Limits"},
      {.name = "--socket-mode",
       .value = "OCTAL",
       .default_text = "600",
       .set = mode_value(options.socket_mode),
       .group = "Limits"},
      {.name = "--trust-request-chat-template",
       .default_text = "off",
       .set = switch_value(options.trust_request_chat_template),
       .group = "Limits"},
      {.name = "--generation-config",
       .value = "WHOSE",
       .default_text = "auto",
       .set = choice_value<bool>(options.model_sampling, {{"auto", true}, {"none", false}, {"vllm", false}}),
       .group = "Limits"}};
}

}  // namespace

std::vector<OptionSpec> serve_option_specs(ServeOptions& options) {
  std::vector<OptionSpec> specs = {
      {.name = "--host",
       .value = "ADDRESS",
       .help = "where to listen; unix:/PATH: a Unix socket",
       .default_text = options.host,
       .set = string_value(options.host)},
      {.name = "--port",
       .value = "N",
       .help = "0: any free one",
       .default_text = "8000",
       .set = int_value(options.port, 0, 65535)},
      {.name = "--served-model-name",
       .value = "NAME",
       .help = "what clients call the model",
       .default_text = "MODEL",
       .set = string_value(options.served_name)},
      {.name = "--api-key",
       .value = "KEY",
       .help = "asked of every client, but for /health and /ready",
       .set = string_value(options.api_key)},
      {.name = "--api-key-file",
       .value = "FILE",
       .help = "keys with names, `name: key` a line; reread on SIGHUP",
       .set = string_value(options.api_key_file)},
      {.name = "--allow-origins",
       .aliases = {"--allowed-origins"},
       .value = "URL,...",
       .help = "pages whose scripts may ask; *: any",
       .set = list_value(options.allowed_origins)},
      {.name = "--allowed-hosts",
       .value = "NAME,...",
       .help = "more names that Host may hold; *.NAME, or *: any",
       .set = list_value(options.allowed_hosts)},
      {.name = "--ssl-certfile",
       .value = "FILE",
       .help = "serve TLS with this certificate and chain, PEM",
       .set = string_value(options.tls.certificate)},
      {.name = "--ssl-keyfile",
       .value = "FILE",
       .help = "its private key, PEM",
       .set = string_value(options.tls.key)},
      {.name = "--max-queue",
       .value = "N",
       .help = "generations that may wait; more get 429",
       .default_text = "256",
       .set = int_value(options.max_queue, 1, 900)},
      date_option_spec(options.date),
      {.name = "--shutdown-timeout",
       .value = "SECONDS",
       .help = "for what runs when told to end; told twice: none",
       .default_text = "30",
       .set = int_value(options.shutdown_timeout, 0, 86400)},
      {.name = "--log-level",
       .value = "LEVEL",
       .help = "debug, info, warning, error or off",
       .default_text = "info",
       .set = choice_value<LogLevel>(options.log_level, {{"debug", LogLevel::debug},
                                                         {"info", LogLevel::info},
                                                         {"warning", LogLevel::warning},
                                                         {"error", LogLevel::error},
                                                         {"off", LogLevel::off}})},
      {.name = "--log-json", .help = "the log as JSON lines", .set = switch_value(options.log_json)},
      {.name = "--no-supervise",
       .help = "one process, not restarted when it dies: for debuggers",
       .set = switch_value(options.no_supervise)},
  };
  for (OptionSpec& spec : limit_specs(options)) specs.push_back(std::move(spec));
  return specs;
}

Status check(const ServeOptions& options) {
  if (options.tls.certificate.empty() != options.tls.key.empty()) {
    return invalid_argument("--ssl-certfile and --ssl-keyfile belong together; give both, or none");
  }
  for (const std::string& origin : options.allowed_origins) {
    if (!is_origin(origin))
      return invalid_argument("--allow-origins " + quote(origin) +
                              " is no origin; write it as https://host or https://host:port, or * for any");
  }
  return {};
}

bool is_loopback(const std::string& host) {
  return http::is_unix_host(host) || host == "localhost" || host == "::1" || host.starts_with("127.");
}

http::ServerLimits ServeOptions::limits() const {
  http::ServerLimits limits;
  const auto header_bytes = static_cast<std::size_t>(max_header_bytes);
  limits.session.head.bytes = header_bytes;
  limits.session.body_bytes = static_cast<std::uint64_t>(max_body_bytes);
  limits.session.request_time = limits.write_time = std::chrono::seconds(client_timeout);
  limits.session.idle_time = std::chrono::seconds(keep_alive_timeout);
  limits.connections = max_connections;
  limits.keep_alive_comment = std::chrono::seconds(sse_keep_alive);
  limits.unsent_bytes = static_cast<std::size_t>(max_unsent_bytes);
  return limits;
}

GateOptions ServeOptions::gate(ApiKeys keys) const {
  std::vector<std::string> hosts = allowed_hosts;
  hosts.push_back(host);
  for (const std::string& name : own_names()) hosts.push_back(name);
  // A page that got here by its own name has no key.
  // A browser does not speak to Unix sockets.
  const bool check_host =
      !allowed_hosts.empty() || (!http::is_unix_host(host) && (!keys.asked_for() || is_loopback(host)));
  return {.keys = std::move(keys),
          .allowed_origins = allowed_origins,
          .allowed_hosts = std::move(hosts),
          .check_host = check_host};
}

LogOptions ServeOptions::log() const {
  return {.level = log_level, .format = log_json ? LogFormat::json : LogFormat::plain};
}

std::chrono::seconds ServeOptions::step_limit(DeviceKind device) const {
  // A step on a GPU takes milliseconds; one on a CPU takes what the model and the machine make of it.
  constexpr int usual_gpu_limit = 30;
  if (step_timeout >= 0) return std::chrono::seconds(step_timeout);
  return std::chrono::seconds(device == DeviceKind::cuda ? usual_gpu_limit : 0);
}

std::chrono::seconds ServeOptions::self_test_interval(DeviceKind device) const {
  // On a GPU it takes milliseconds; on a CPU it could be a laptop's only work.
  constexpr int usual_gpu_interval = 60;
  if (self_test >= 0) return std::chrono::seconds(self_test);
  return std::chrono::seconds(device == DeviceKind::cuda ? usual_gpu_interval : 0);
}

std::string ServeOptions::url(int bound_port) const {
  if (http::is_unix_host(host)) return host;
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return (tls.certificate.empty() ? "http://" : "https://") + name + ":" + std::to_string(bound_port);
}

}  // namespace nibble
