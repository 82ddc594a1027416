// The options of `nibble serve`.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/options.h"
#include "plan/kernel_table.h"
#include "server/gate.h"
#include "server/http/socket_server.h"
#include "text/day.h"

namespace nibble {

struct ServeOptions {
  EngineOptions engine;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string served_name;
  std::string api_key;
  std::string api_key_file;
  std::vector<std::string> allowed_origins;
  std::vector<std::string> allowed_hosts;
  mode_t socket_mode = 0600;  // of a Unix socket
  http::TlsFiles tls;
  std::optional<Day> date;
  bool trust_request_chat_template = false;
  bool model_sampling = true;  // generation_config.json says how requests are sampled that do not
  int max_queue = 256;
  int shutdown_timeout = 30;  // seconds, like those below
  int client_timeout = 30;
  int keep_alive_timeout = 120;
  int sse_keep_alive = 15;  // 0: none
  int request_timeout = 0;  // 0: none
  int load_timeout = 300;   // without progress; 0: none
  int step_timeout = -1;    // 0: none; below it: the device's own
  int self_test = -1;       // likewise: how long the engine is idle before it tests itself
  int max_connections = 0;  // 0: 4096, or as many as the limit of open files allows
  int max_header_bytes = 32 << 10;
  int max_body_bytes = 4 << 20;
  int max_unsent_bytes = 256 << 10;
  LogLevel log_level = LogLevel::info;
  bool log_json = false;
  bool no_supervise = false;

  http::ServerLimits limits() const;
  GateOptions gate(ApiKeys keys) const;
  LogOptions log() const;
  // For one step of an engine on that device; 0: any.
  std::chrono::seconds step_limit(DeviceKind device) const;
  // 0: none.
  std::chrono::seconds self_test_interval(DeviceKind device) const;
  std::string url(int bound_port) const;
  // Whether a file is read again at SIGHUP.
  bool can_reload() const { return !api_key_file.empty() || !tls.certificate.empty(); }
};

// The rows that set `options`, which outlives them.
std::vector<OptionSpec> serve_option_specs(ServeOptions& options);

// What one option cannot know of another.
Status check(const ServeOptions& options);

// Only programs on this machine reach it, or those that a file's permissions let in.
bool is_loopback(const std::string& host);

}  // namespace nibble
