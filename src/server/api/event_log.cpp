#include "server/api/event_log.h"

#include <algorithm>

#include "server/api/answer_encoder.h"

namespace nibble::api {

void EventLog::add(std::string_view events) {
  if (ended_) return;
  share_.grow(events.size());
  constexpr std::string_view border = "\n\n";
  const std::size_t before = events_.size();
  events_ += events;
  for (std::size_t at = events_.find(border, before); at != events_.npos; at = events_.find(border, at))
    ends_.push_back(at += border.size());
  // A listener may go while it is told, and is then no listener any more.
  for (const auto& listener : std::vector(listeners_)) listener->stream(events);
}

void EventLog::end() {
  ended_ = true;
  share_ = {};
  for (const auto& listener : std::exchange(listeners_, {})) listener->end_stream();
}

void EventLog::tell(const std::shared_ptr<http::Exchange>& listener, std::size_t first) {
  listener->begin_stream(event_stream_head());
  const std::size_t from = first == 0 ? 0 : ends_.empty() ? 0 : ends_[std::min(first, ends_.size()) - 1];
  if (from < events_.size()) listener->stream(std::string_view(events_).substr(from));
  if (ended_) return listener->end_stream();
  listeners_.push_back(listener);
  listener->on_gone([log = weak_from_this(), gone = listener.get()] {
    const auto here = log.lock();
    if (!here) return;
    std::erase_if(here->listeners_, [gone](const auto& other) { return other.get() == gone; });
  });
}

}  // namespace nibble::api
