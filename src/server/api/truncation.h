// A conversation that is too long for the context, without its oldest turns.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "text/conversation.h"

namespace nibble::api {

// The turns that may begin a shorter conversation: the places of its user's messages but the first.
std::vector<std::size_t> later_turns(const std::vector<Message>& messages);
// What is left from a turn on: with all that instructs the model, wherever it stands.
std::vector<Message> from_turn(const std::vector<Message>& messages, std::size_t turn);
// The place in `turns` of the earliest one that leaves enough room; turns.size(): none does. `fits` says it
// of a turn, and of all later ones the same.
std::size_t earliest_that_fits(const std::vector<std::size_t>& turns,
                               const std::function<bool(std::size_t turn)>& fits);

}  // namespace nibble::api
