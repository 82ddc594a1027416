#include "app/supervisor.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>
#include <utility>

#include "app/terminal.h"
#include "base/check.h"
#include "base/thread_name.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How long an engine may take beyond its own deadlines before it is killed.
constexpr std::chrono::seconds patience{10};
// How long an engine may be stopped; who stops a whole terminal's programs also goes on with them.
constexpr std::chrono::seconds stop_patience{2};
// An engine that served this long has nothing to do with the deaths before it.
constexpr std::chrono::minutes healthy_time{1};

SharedState* make_shared_state() {
  void* memory =
      mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  NIBBLE_CHECK(memory != MAP_FAILED, "a few pages of memory");
  return new (memory) SharedState;
}

// The words of a log that lives for one line: its thread would not survive a fork.
void say(const LogOptions& options, LogLevel level, std::string_view message, LogFields fields) {
  const SystemClock clock;
  Log(options, clock).write(level, message, fields);
}

class Supervisor {
 public:
  explicit Supervisor(const SupervisorOptions& options) : options_(options), shared_(make_shared_state()) {
    sigemptyset(&signals_);
    for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, stop_order(), reload_order(), fail_order()})
      sigaddset(&signals_, number);
    sigprocmask(SIG_BLOCK, &signals_, nullptr);
    sigdelset(&signals_, stop_order());
    sigdelset(&signals_, reload_order());
    sigdelset(&signals_, fail_order());
  }

  Child run() {
    milliseconds pause = options_.first_pause;
    while (true) {
      if (const std::optional<Child> child = start(ChildRole::engine, engine_)) return *child;
      end_stand_in(stop_order());
      const auto begun = steady_clock::now();
      const int status = wait_for_engine();
      decide(status);
      if (steady_clock::now() - begun > healthy_time) pause = options_.first_pause;
      const int suspects = shared_->suspects.blame();
      say(options_.log, LogLevel::error, "the engine's process ended; it is started again",
          {{"signal", WIFSIGNALED(status) ? WTERMSIG(status) : 0},
           {"exit_code", WIFEXITED(status) ? WEXITSTATUS(status) : 0},
           {"requests_suspected", suspects},
           {"pause_seconds", std::chrono::duration<double>(pause).count()}});
      end_stand_in(SIGKILL);
      if (const std::optional<Child> child = start(ChildRole::stand_in, stand_in_)) return *child;
      sleep(pause);
      pause = std::min(2 * pause, options_.longest_pause);
    }
  }

 private:
  // The child's view of itself, or nothing in the parent.
  std::optional<Child> start(ChildRole role, pid_t& id) {
    std::fflush(nullptr);
    const pid_t parent = getpid();
    id = fork();
    NIBBLE_CHECK(id >= 0, "the system starts another process");
    if (id > 0) return {};
    // Whatever ends the parent ends its children.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) std::_Exit(1);
    role == ChildRole::engine ? name_this_thread("nibble-engine") : name_this_thread("nibble-standin");
    sigset_t child_ended;
    sigemptyset(&child_ended);
    sigaddset(&child_ended, SIGCHLD);
    sigprocmask(SIG_UNBLOCK, &child_ended, nullptr);
    return Child{.role = role, .shared = shared_};
  }

  // Ends the process unless the engine is to be started again.
  void decide(int status) {
    const bool by_itself = WIFEXITED(status);
    if (by_itself && (stops_ > 0 || !shared_->served || WEXITSTATUS(status) == 0)) leave(WEXITSTATUS(status));
    if (stops_ == 0 && shared_->served) return;
    if (!killed_) {
      say(options_.log, LogLevel::error,
          stops_ > 0 ? "the engine's process died while it was to end"
                     : "the engine's process died before it could serve; is there memory enough?",
          {{"signal", WTERMSIG(status)}});
    }
    leave(1);
  }

  // Until it has ended; orders to end are handed on meanwhile. Returns what waitpid() says.
  int wait_for_engine() {
    while (true) {
      int status = 0;
      if (waitpid(engine_, &status, WNOHANG | WUNTRACED | WCONTINUED) == engine_) {
        if (WIFSTOPPED(status)) {
          stopped_until_ = steady_clock::now() + stop_patience;
          continue;
        }
        stopped_until_.reset();
        if (WIFCONTINUED(status)) continue;
        engine_ = 0;
        gives_up_ = false;
        return status;
      }
      if (stand_in_ > 0 && waitpid(stand_in_, nullptr, WNOHANG) == stand_in_) stand_in_ = 0;
      steady_clock::time_point until = stops_ > 0 || gives_up_ ? kill_at_ : steady_clock::time_point::max();
      if (stopped_until_) until = std::min(until, *stopped_until_);
      const int number = next_signal(until);
      if (number == SIGHUP && reloads()) {
        reload();
      } else if (is_stop(number)) {
        ++stops_;
        kill(engine_, stop_order());
        kill_at_ = steady_clock::now() + patience;
        if (stops_ == 1) kill_at_ += options_.shutdown_timeout;
      } else if (stopped_until_ && steady_clock::now() >= *stopped_until_) {
        give_up_stopped();
      } else if ((stops_ > 0 || gives_up_) && steady_clock::now() >= kill_at_) {
        say(options_.log, LogLevel::error, "the engine's process did not end when it was to; it is killed",
            {});
        killed_ = stops_ > 0;
        kill(engine_, SIGKILL);
        kill_at_ += patience;
      }
    }
  }

  // Somebody has stopped the engine and leaves its clients waiting.
  void give_up_stopped() {
    stopped_until_.reset();
    say(options_.log, LogLevel::error, "the engine's process is stopped and serves nobody; it is to end", {});
    kill(engine_, shared_->served ? fail_order() : SIGKILL);
    kill(engine_, SIGCONT);
    if (stops_ > 0) return;
    gives_up_ = true;
    kill_at_ = steady_clock::now() + patience / 2;
  }

  // Ends the process when told to end.
  void sleep(milliseconds pause) {
    const auto until = steady_clock::now() + pause;
    while (steady_clock::now() < until) {
      const int number = next_signal(until);
      if (number == SIGHUP && reloads()) {
        reload();
      } else if (is_stop(number)) {
        leave(0);
      }
    }
  }

  // SIGHUP also says that the terminal is gone, and then the program goes with it.
  bool reloads() const { return !terminal_.is_gone(); }
  static bool is_stop(int number) { return number == SIGTERM || number == SIGINT || number == SIGHUP; }
  void reload() {
    if (options_.reload) options_.reload();
    for (const pid_t child : {engine_, stand_in_}) {
      if (child > 0) kill(child, reload_order());
    }
  }

  // The signal that came, or 0 when time is up.
  int next_signal(steady_clock::time_point until) {
    const auto left = std::clamp<std::chrono::nanoseconds>(until - steady_clock::now(), milliseconds(0),
                                                           std::chrono::hours(1));
    const timespec time{.tv_sec = left.count() / 1'000'000'000, .tv_nsec = left.count() % 1'000'000'000};
    return std::max(sigtimedwait(&signals_, nullptr, &time), 0);
  }

  // Told to stop it answers what it has taken and goes; the next engine accepts from the same port already.
  void end_stand_in(int number) {
    if (stand_in_ <= 0) return;
    kill(stand_in_, number);
    if (number == SIGKILL) waitpid(std::exchange(stand_in_, 0), nullptr, 0);
  }

  [[noreturn]] void leave(int code) {
    end_stand_in(SIGKILL);
    if (options_.at_end) options_.at_end();
    std::fflush(nullptr);
    std::_Exit(code);
  }

  const SupervisorOptions options_;
  const StartTerminal terminal_;
  SharedState* const shared_;
  sigset_t signals_;
  pid_t engine_ = 0;
  pid_t stand_in_ = 0;
  int stops_ = 0;  // orders to end so far
  bool killed_ = false;
  bool gives_up_ = false;                                  // on an engine that was stopped
  std::optional<steady_clock::time_point> stopped_until_;  // when patience with it ends
  steady_clock::time_point kill_at_;
};

}  // namespace

Child supervise(const SupervisorOptions& options) { return Supervisor(options).run(); }

}  // namespace nibble
