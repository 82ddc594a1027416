// server_load: how many streams the server carries on one CPU, what it adds to a token's way, and what it
// does with three times what it can serve. The server's threads are on one CPU and the clients on another;
// the engine is fake, all else is what `nibble serve` runs.
//
//   server_load streams [STREAMS [TOKENS_A_SECOND_EACH [SECONDS]]]
//   server_load overload [SECONDS]
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "server/load/front_end.h"
#include "server/load/stream_clients.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr int server_cpu = 0, client_cpu = 1;

nanoseconds now() { return std::chrono::steady_clock::now().time_since_epoch(); }
double seconds_of(nanoseconds time) { return std::chrono::duration<double>(time).count(); }

// Threads that this one starts inherit it.
void stay_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0)
    std::fprintf(stderr, "warning: CPU %d is not to be had\n", cpu);
}

struct CpuTime {
  double program = 0, kernel = 0;  // seconds
  double all() const { return program + kernel; }
  CpuTime operator-(const CpuTime& other) const { return {program - other.program, kernel - other.kernel}; }
};

CpuTime cpu_time(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return {of(usage.ru_utime), of(usage.ru_stime)};
}

// Of the server's threads: all but the calling one.
CpuTime server_time() { return cpu_time(RUSAGE_SELF) - cpu_time(RUSAGE_THREAD); }

double percentile(std::vector<double>& samples, double share) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const auto rank = static_cast<std::size_t>(share * static_cast<double>(samples.size() - 1) + 0.5);
  return samples[rank];
}

std::unique_ptr<FrontEnd> start(const FakePace& pace, int most_waiting, TokenTimes* times) {
  stay_on(server_cpu);
  Result<std::unique_ptr<FrontEnd>> front =
      FrontEnd::start(NIBBLE_SOURCE_DIR "/models/demo", pace, most_waiting, times);
  stay_on(client_cpu);
  if (front.ok()) return std::move(front).value();
  std::fprintf(stderr, "error: %s\n", front.status().message().c_str());
  std::exit(1);
}

// Every stream runs at once; what counts is the time while all of them do.
int run_streams(int streams, int rate, int seconds) {
  const int warm = rate * 2, tokens = warm + rate * seconds + rate;
  const int groups = std::max(1, 1000 / rate);  // a step a millisecond
  TokenTimes times(streams, tokens);
  const auto front =
      start({.sequences = streams, .groups = groups, .step = nanoseconds(1'000'000'000 / rate / groups)},
            streams, &times);
  std::vector<double> late;
  int running = 0, frames = 0;
  nanoseconds from{0}, until{0};
  CpuTime server_from, server_until, own_from, own_until;
  StreamClients clients(front->port(), streams, [&](int client, int event) {
    running += event == 0 ? 1 : 0;
    if (running < streams || event < warm || event >= tokens - rate / 2 || until.count() > 0) return;
    const nanoseconds at = now();
    if (from.count() == 0) {
      from = at;
      server_from = server_time();
      own_from = cpu_time(RUSAGE_THREAD);
    }
    ++frames;
    late.push_back(seconds_of(at - times.at(client, event)));
    if (at - from < std::chrono::seconds(seconds)) return;
    until = at;
    server_until = server_time();
    own_until = cpu_time(RUSAGE_THREAD);
  });
  for (int i = 0; i < streams; ++i) {
    clients.begin(i, "/v1/completions", stream_request(i, tokens));
    clients.serve(milliseconds(0));
  }
  while (clients.open() > 0) clients.serve(milliseconds(100));
  int failed = 0;
  for (const auto& outcome : clients.outcomes())
    failed += outcome.status != 200 || outcome.events != tokens + 1 || !outcome.whole ? 1 : 0;
  const double took = seconds_of(until - from);
  const CpuTime cpu = server_until - server_from;
  std::printf("streams %d, each %d tokens/s: %.0f frames/s for %.1f s, %d streams failed\n", streams, rate,
              frames / took, took, failed);
  std::printf("added latency: p50 %.3f ms, p99 %.3f ms, p99.9 %.3f ms\n", percentile(late, 0.5) * 1e3,
              percentile(late, 0.99) * 1e3, percentile(late, 0.999) * 1e3);
  std::printf("CPU: server %.0f %% of its CPU, %.2f us a frame, %.2f of them the kernel's; clients %.0f %%\n",
              cpu.all() / took * 100, cpu.all() / frames * 1e6, cpu.kernel / frames * 1e6,
              (own_until - own_from).all() / took * 100);
  return failed == 0 ? 0 : 1;
}

struct Served {
  double goodput = 0;  // tokens a second of whole answers
  std::map<int, int> statuses;
};

// Requests begin at even times of this rate; 0: so many are always open.
Served offer(int port, double rate, int always, int seconds, int tokens) {
  const int most = rate > 0 ? static_cast<int>(rate * seconds) : 200'000;
  StreamClients clients(port, most, [](int, int) {});
  const nanoseconds begin = now(), end = begin + std::chrono::seconds(seconds);
  const nanoseconds settled = begin + std::chrono::seconds(1);
  int begun = 0;
  const std::string body = stream_request(1, tokens);
  while (now() < end || clients.open() > 0) {
    const auto due = [&] {
      if (now() >= end || begun == most) return false;
      return rate > 0 ? begun < seconds_of(now() - begin) * rate : clients.open() < always;
    };
    while (due()) clients.begin(begun++, "/v1/completions", body);
    clients.serve(milliseconds(1));
  }
  Served served;
  std::int64_t good = 0;
  for (int i = 0; i < begun; ++i) {
    const auto& outcome = clients.outcomes()[static_cast<std::size_t>(i)];
    ++served.statuses[outcome.whole ? outcome.status : 0];
    const bool counts = outcome.status == 200 && outcome.whole && outcome.events == tokens + 1;
    if (counts && outcome.ended >= settled && outcome.ended < end) good += tokens;
  }
  served.goodput = static_cast<double>(good) / (seconds - 1);
  return served;
}

// Asks /health over and over until told to stop.
std::vector<double> ask_health(int port, const std::atomic<bool>& stop) {
  std::vector<double> took;
  const int handle = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(handle, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return took;
  const std::string request = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  char answer[2048];
  while (!stop) {
    const nanoseconds begin = now();
    if (::send(handle, request.data(), request.size(), MSG_NOSIGNAL) <= 0) break;
    const ssize_t size = ::recv(handle, answer, sizeof answer, 0);
    if (size < 12 || std::string_view(answer, 12) != "HTTP/1.1 200") break;
    took.push_back(seconds_of(now() - begin));
    std::this_thread::sleep_for(milliseconds(5));
  }
  if (!stop) std::fprintf(stderr, "warning: /health failed\n");
  ::close(handle);
  return took;
}

int run_overload(int seconds) {
  constexpr int sequences = 64, tokens = 32;
  const auto front = start({.sequences = sequences, .step = milliseconds(5)}, 256, nullptr);
  std::atomic<bool> stop = false;
  std::vector<double> health;
  std::thread asker([&] { health = ask_health(front->port(), stop); });
  const Served peak = offer(front->port(), 0, sequences * 3 / 2, seconds, tokens);
  const double rate = peak.goodput / tokens * 3;
  const Served over = offer(front->port(), rate, 0, seconds, tokens);
  stop = true;
  asker.join();
  std::printf("peak: %.0f tokens/s of whole answers, %.0f requests/s\n", peak.goodput, peak.goodput / tokens);
  std::printf("offered three times that, %.0f requests/s: %.0f tokens/s, %.1f %% of the peak; answers:", rate,
              over.goodput, over.goodput / peak.goodput * 100);
  for (const auto& [status, count] : over.statuses) std::printf(" %d of %d", count, status);
  std::printf("\n/health throughout: p50 %.2f ms, p99 %.2f ms, %zu times\n", percentile(health, 0.5) * 1e3,
              percentile(health, 0.99) * 1e3, health.size());
  return 0;
}

int run(const std::vector<std::string>& words) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const auto number = [&](std::size_t i, int otherwise) {
    return i < words.size() ? std::max(1, std::atoi(words[i].c_str())) : otherwise;
  };
  if (!words.empty() && words[0] == "streams")
    return run_streams(number(1, 1000), number(2, 50), number(3, 10));
  if (!words.empty() && words[0] == "overload") return run_overload(number(1, 10));
  std::fprintf(
      stderr, "usage: server_load streams [STREAMS [TOKENS_A_SECOND_EACH [SECONDS]]] | overload [SECONDS]\n");
  return 2;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) { return nibble::run({argv + 1, argv + argc}); }
