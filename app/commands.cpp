#include "app/commands.h"

namespace nibble {

std::vector<const Command*> all_commands() {
  return {&serve_command,   &chat_command,       &generate_command, &pull_command,     &list_command,
          &rm_command,      &bench_command,      &plan_command,     &doctor_command,   &tune_command,
          &inspect_command, &quantize_command,   &score_command,    &tokenize_command, &grammar_command,
          &health_command,  &completions_command};
}

}  // namespace nibble
