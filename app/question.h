// A question on the terminal that has two answers.
#pragma once

#include <string_view>

#include "app/cli.h"

namespace nibble {

// Whether somebody can be asked: standard input and standard error are terminals.
bool can_ask(const Console& console);

// "<question> [y/N] " and a line in reply; true for y and yes, in any case.
bool ask(std::string_view question, Console& console);

}  // namespace nibble
