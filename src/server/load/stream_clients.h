// Many clients of one server on one thread, cheap enough to load it: they count what they read and hardly
// look at it.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class StreamClients {
 public:
  struct Outcome {
    int status = 0;      // HTTP's; 0: none came
    int events = 0;      // server-sent ones, the [DONE] among them
    bool whole = false;  // the connection was closed after the last chunk, or after any other answer
    std::chrono::nanoseconds begun{0}, ended{0};  // of the steady clock
  };
  // Told of each event: its client's number and its own.
  using OnEvent = std::function<void(int client, int event)>;

  StreamClients(int port, int clients, OnEvent on_event);
  StreamClients(const StreamClients&) = delete;
  StreamClients& operator=(const StreamClients&) = delete;
  ~StreamClients();

  // A client connects and posts this body; each does so once.
  void begin(int client, std::string_view path, std::string_view body);
  // Serves whoever has something, for so long at most; 0: only those that have it now.
  void serve(std::chrono::milliseconds time);
  int open() const { return open_; }
  const std::vector<Outcome>& outcomes() const { return outcomes_; }

 private:
  struct Client {
    int handle = -1;
    std::string unsent;
    std::string tail;  // the last bytes read, enough to know an ending by
  };

  void write(int client);
  void read(int client);
  void end(int client, bool closed);

  int port_;
  int poll_;
  int open_ = 0;
  OnEvent on_event_;
  std::vector<Client> clients_;
  std::vector<Outcome> outcomes_;
};

// What is posted to /v1/completions for a stream of so many tokens; the prompt is this one token.
std::string stream_request(int token, int tokens);

}  // namespace nibble
