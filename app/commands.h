// The subcommands, each defined in app/<name>.cpp.
#pragma once

#include <vector>

#include "app/cli.h"

namespace nibble {

extern const Command bench_command;
extern const Command chat_command;
extern const Command completions_command;
extern const Command doctor_command;
extern const Command tune_command;
extern const Command generate_command;
extern const Command grammar_command;
extern const Command health_command;
extern const Command inspect_command;
extern const Command list_command;
extern const Command plan_command;
extern const Command pull_command;
extern const Command quantize_command;
extern const Command rm_command;
extern const Command score_command;
extern const Command serve_command;
extern const Command tokenize_command;

// In the order in which the help shows them.
std::vector<const Command*> all_commands();

}  // namespace nibble
