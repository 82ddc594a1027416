#include "plan/library_probe.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

namespace nibble {
namespace {

// No version of anything; a function of another signature leaves it as it is.
constexpr int untouched = INT_MIN;

template <class Function>
Function symbol(void* library, const std::string& name) {
  return reinterpret_cast<Function>(dlsym(library, name.c_str()));
}

std::string dotted(std::int64_t version, VersionCall call) {
  const std::int64_t major = call == VersionCall::thousands ? version / 1000 : version / 10000;
  const std::int64_t minor = call == VersionCall::thousands ? version % 1000 / 10 : version / 100 % 100;
  const std::int64_t patch = call == VersionCall::thousands ? 0 : version % 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

// What the child says: a letter and words. V: a version. P: a problem. M: it is missing.
std::string asked_version(void* library, const LibrarySpec& spec) {
  const std::string& name = spec.version_symbol;
  if (spec.version_call == VersionCall::returned) {
    const auto version = symbol<std::size_t (*)()>(library, name)();
    if (version == 0 || version > 100'000'000)
      return "P" + name + " gave " + std::to_string(version) + ", which is no version";
    return "V" + dotted(static_cast<std::int64_t>(version), spec.version_call);
  }
  int major = untouched, minor = untouched;
  const int code = spec.version_call == VersionCall::pair
                       ? symbol<int (*)(int*, int*)>(library, name)(&major, &minor)
                       : symbol<int (*)(int*)>(library, name)(&major);
  if (code != 0) return "P" + name + " failed with code " + std::to_string(code);
  if (major == untouched || major <= 0) return "P" + name + " wrote no version: its signature is another one";
  if (spec.version_call == VersionCall::pair)
    return "V" + std::to_string(major) + "." + std::to_string(std::max(minor, 0));
  return "V" + dotted(major, spec.version_call);
}

std::string examine(const LibrarySpec& spec) {
  void* library = nullptr;
  std::string error;
  for (const std::string& file : spec.files) {
    library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    const char* said = dlerror();
    // What is there and does not open is worse than what is not there.
    if (said != nullptr && std::strstr(said, "cannot open shared object file: No such file") == nullptr)
      error = said;
  }
  if (library == nullptr) return error.empty() ? "M" : "Pit does not open: " + error;
  std::vector<std::string> needed = spec.symbols;
  needed.push_back(spec.version_symbol);
  for (const std::string* one : {&spec.size_symbol, &spec.probe_symbol}) {
    if (!one->empty()) needed.push_back(*one);
  }
  for (const std::string& name : needed) {
    if (dlsym(library, name.c_str()) == nullptr) return "Pit has no symbol " + name;
  }
  if (!spec.size_symbol.empty()) {
    const std::size_t size = symbol<std::size_t (*)()>(library, spec.size_symbol)();
    if (size != spec.size) {
      return "Pits struct has " + std::to_string(size) + " bytes (" + spec.size_symbol +
             "), this program's " + std::to_string(spec.size);
    }
  }
  if (!spec.probe_symbol.empty()) {
    const int code = symbol<int (*)()>(library, spec.probe_symbol)();
    if (code != 0) return "P" + spec.probe_symbol + " failed with code " + std::to_string(code);
  }
  return asked_version(library, spec);
}

[[noreturn]] void run_child(const LibrarySpec& spec, int out) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTERM}) signal(number, SIG_DFL);
  // Libraries print when they are loaded; it would land among our results.
  const int nowhere = open("/dev/null", O_RDWR);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nowhere, fd);
  const std::string answer = examine(spec);
  (void)!write(out, answer.data(), answer.size());
  _exit(0);
}

using Clock = std::chrono::steady_clock;

// What the child has had of a CPU; nothing once it has ended.
std::chrono::nanoseconds cpu_time_of(pid_t child) {
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(child, &clock) != 0 || clock_gettime(clock, &time) != 0) return {};
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Which limit the child is past; empty while it is within both.
std::string spent_limit(pid_t child, Clock::time_point begin, const ProbeLimits& limits) {
  if (cpu_time_of(child) >= limits.cpu) return std::to_string(limits.cpu.count()) + " ms of a CPU's time";
  if (Clock::now() - begin >= limits.wall) return std::to_string(limits.wall.count()) + " ms";
  return {};
}

// All that the child says, until it closes its end; returns the limit that it went past, empty where it did
// not.
std::string read_answer(int in, pid_t child, const ProbeLimits& limits, std::string& answer) {
  constexpr int look_again_ms = 20;
  const Clock::time_point begin = Clock::now();
  while (true) {
    pollfd wait{.fd = in, .events = POLLIN, .revents = 0};
    const int ready = poll(&wait, 1, look_again_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      if (std::string limit = spent_limit(child, begin, limits); !limit.empty()) return limit;
      continue;
    }
    char bytes[512];
    const ssize_t count = read(in, bytes, sizeof bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return {};
    answer.append(bytes, static_cast<std::size_t>(count));
  }
}

std::string end_of(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) return "it crashed when probed (signal " + std::to_string(WTERMSIG(status)) + ")";
  return "it ended the process when probed (code " + std::to_string(WEXITSTATUS(status)) + ")";
}

}  // namespace

std::span<const LibrarySpec> library_specs() {
  static const std::vector<LibrarySpec> specs = {
      {.name = "cuda_driver",
       .files = {"libcuda.so.1"},
       .version_symbol = "cuDriverGetVersion",
       .symbols = {"cuInit", "cuMemCreate", "cuMemMap", "cuGraphLaunch"}},
      {.name = "cuda_runtime",
       .files = {"libcudart.so.13"},
       .version_symbol = "cudaRuntimeGetVersion",
       .symbols = {"cudaGraphLaunch", "cudaLaunchKernelExC"}},
      {.name = "nccl",
       .files = {"libnccl.so.2"},
       .version_symbol = "ncclGetVersion",
       .version_call = VersionCall::ten_thousands,
       .symbols = {"ncclGetUniqueId", "ncclCommInitRank", "ncclAllReduce", "ncclCommAbort",
                   "ncclCommGetAsyncError", "ncclGetErrorString"}},
      {.name = "cublaslt",
       .files = {"libcublasLt.so.13"},
       .version_symbol = "cublasLtGetVersion",
       .version_call = VersionCall::returned,
       .symbols = {"cublasLtMatmul"}},
      {.name = "mpi",
       .files = {"libmpi.so.40"},
       .version_symbol = "MPI_Get_version",
       .version_call = VersionCall::pair,
       .symbols = {"MPI_Init_thread", "MPI_Bcast"}},
  };
  return specs;
}

FoundLibrary probe_library(const LibrarySpec& spec, const ProbeLimits& limits) {
  FoundLibrary found{.name = spec.name, .version = {}, .problem = {}};
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    found.problem = std::string("no pipe to probe it through: ") + std::strerror(errno);
    return found;
  }
  const pid_t child = fork();
  if (child == 0) run_child(spec, ends[1]);
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    found.problem = std::string("no process to probe it in: ") + std::strerror(errno);
    return found;
  }
  std::string answer;
  const std::string spent = read_answer(ends[0], child, limits, answer);
  close(ends[0]);
  if (!spent.empty()) kill(child, SIGKILL);
  const std::string end = end_of(child);
  if (!spent.empty()) {
    found.problem = "it did not answer within " + spent;
  } else if (answer.empty()) {
    found.problem = end;
  } else if (answer[0] == 'V') {
    found.version = answer.substr(1);
  } else if (answer[0] == 'P') {
    found.problem = answer.substr(1);
  }
  return found;
}

std::vector<FoundLibrary> probe_libraries() {
  std::vector<FoundLibrary> found;
  for (const LibrarySpec& spec : library_specs()) found.push_back(probe_library(spec));
  return found;
}

}  // namespace nibble
