#include "server/http/places.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace nibble::http {
namespace {

bool is_half_sent(Stage stage) { return stage == Stage::head || stage == Stage::body; }

}  // namespace

Places::Id Places::enter(std::string network, Time now) {
  const Id id = next_id_++;
  const Place& place = places_
                           .emplace(id, Place{.network = std::move(network),
                                              .stage = Stage::head,
                                              .order = next_order_++,
                                              .since = now})
                           .first->second;
  add(id, place);
  return id;
}

void Places::move(Id id, Stage stage, Time now) {
  const auto found = places_.find(id);
  NIBBLE_CHECK(found != places_.end());
  Place& place = found->second;
  if (place.stage == stage) return;
  remove(place);
  if (stage != Stage::body) {
    place.order = next_order_++;
    place.since = now;
  }
  place.stage = stage;
  add(id, place);
}

void Places::leave(Id id) {
  const auto found = places_.find(id);
  NIBBLE_CHECK(found != places_.end());
  remove(found->second);
  places_.erase(found);
}

// Puts a network into the ranking as it is now, or takes it out before it changes.
void Places::rank(const std::string& network, bool add) {
  const auto found = networks_.find(network);
  if (found == networks_.end()) return;
  // The older, the larger: of networks with as many connections the one with the oldest comes last.
  const std::uint64_t age = std::numeric_limits<std::uint64_t>::max() - found->second.begin()->first;
  const std::tuple key(found->second.size(), age, network);
  if (add) {
    ranks_.insert(key);
  } else {
    ranks_.erase(key);
  }
}

void Places::add(Id id, const Place& place) {
  by_age(place.stage).emplace(place.order, id);
  if (!is_half_sent(place.stage)) return;
  rank(place.network, false);
  networks_[place.network].emplace(place.order, id);
  rank(place.network, true);
}

void Places::remove(const Place& place) {
  by_age(place.stage).erase(place.order);
  if (!is_half_sent(place.stage)) return;
  rank(place.network, false);
  const auto found = networks_.find(place.network);
  found->second.erase(place.order);
  if (found->second.empty()) {
    networks_.erase(found);
  } else {
    rank(place.network, true);
  }
}

std::optional<Places::Id> Places::oldest(Stage stage) const {
  const ByAge& all = by_age(stage);
  if (all.empty()) return {};
  return all.begin()->second;
}

std::optional<Places::Id> Places::oldest_of_largest() const {
  if (ranks_.empty()) return {};
  return networks_.at(std::get<2>(*ranks_.rbegin())).begin()->second;
}

bool Places::is_past_grace(std::optional<Id> id, Time now) const {
  return id && now - places_.at(*id).since > grace;
}

std::optional<Places::Id> Places::first_to_go(Time now) const {
  for (const std::optional<Id> id : {oldest(Stage::leaving), oldest_of_largest(), oldest(Stage::idle)}) {
    if (is_past_grace(id, now)) return id;
  }
  return {};
}

std::optional<Places::Id> Places::too_many() const {
  if (half_sent() <= std::max<std::size_t>(most_ / 2, 1)) return {};
  return oldest_of_largest();
}

std::optional<Places::Id> Places::overdue(Time now) const {
  if (half_sent() <= most_ / 4) return {};
  const std::optional<Id> id = oldest(Stage::head);
  if (!id || now - places_.at(*id).since < pressed_head_time) return {};
  return id;
}

}  // namespace nibble::http
