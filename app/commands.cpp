#include "app/commands.h"

namespace nibble {

std::vector<const Command*> all_commands() { return {&tokenize_command}; }

}  // namespace nibble
