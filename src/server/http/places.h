// Who has one of the server's places for connections, and who loses it when there are too few.
//
// A client that connects and sends half a request, or nothing, holds a place without costing itself anything.
// So such clients get at most half of the places. When they have more, or all places are taken, the oldest of
// the network that holds most of them goes. A crowd from one network therefore pushes out its own connections
// first; a crowd from many networks pushes out the oldest, and a new client, being the youngest, has time to
// send its request. Pure: no sockets and no clock.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>

namespace nibble::http {

// What a connection is at.
enum class Stage : std::uint8_t {
  head,     // nothing has come, or not a whole head; TLS's handshake counts as this
  body,     // the head is whole and the body is not
  served,   // an answer is made or sent
  idle,     // between two requests
  leaving,  // all is answered, and what the client still sends is thrown away
};

class Places {
 public:
  using Id = std::uint64_t;
  using Time = std::chrono::steady_clock::time_point;

  // How long a head may take while more than a quarter of the places wait for one.
  static constexpr std::chrono::seconds pressed_head_time{5};
  // How long everybody may stay in a stage, however full it is: to send a request, or to read the answer.
  static constexpr std::chrono::milliseconds grace{250};

  explicit Places(int most) : most_(static_cast<std::size_t>(most)) {}

  // A connection from `network` begins, at Stage::head.
  Id enter(std::string network, Time now);
  void move(Id id, Stage stage, Time now);
  void leave(Id id);

  std::size_t taken() const { return places_.size(); }
  bool full() const { return taken() >= most_; }

  // Who goes so that another one may come: who is leaving, who has sent half a request, who is idle, in this
  // order. Nothing if all are being served or have just come.
  std::optional<Id> first_to_go(Time now) const;
  // Who goes although places are left, because more than half of them hold half a request.
  std::optional<Id> too_many() const;
  // Who has taken longer for a head than is allowed under pressure.
  std::optional<Id> overdue(Time now) const;

 private:
  struct Place {
    std::string network;
    Stage stage = Stage::head;
    std::uint64_t order = 0;  // of beginning what it is at; a body goes on with what its head began
    Time since;
  };
  using ByAge = std::map<std::uint64_t, Id>;  // by order

  ByAge& by_age(Stage stage) { return by_age_[static_cast<std::size_t>(stage)]; }
  const ByAge& by_age(Stage stage) const { return by_age_[static_cast<std::size_t>(stage)]; }
  std::size_t half_sent() const { return by_age(Stage::head).size() + by_age(Stage::body).size(); }
  void add(Id id, const Place& place);
  void remove(const Place& place);
  void rank(const std::string& network, bool add);
  std::optional<Id> oldest_of_largest() const;
  std::optional<Id> oldest(Stage stage) const;
  bool is_past_grace(std::optional<Id> id, Time now) const;

  std::size_t most_;
  std::unordered_map<Id, Place> places_;
  std::array<ByAge, 5> by_age_;  // [Stage]
  // Of those that have sent half a request: the orders of each network, and its rank, (how many, how old its
  // oldest is, which). The last in rank has the most, and the oldest.
  std::unordered_map<std::string, ByAge> networks_;
  std::set<std::tuple<std::size_t, std::uint64_t, std::string>> ranks_;
  Id next_id_ = 1;
  std::uint64_t next_order_ = 0;
};

}  // namespace nibble::http
