#include <string_view>
#include <vector>

#include "app/cli.h"
#include "app/commands.h"

int main(int argc, char** argv) {
  const std::vector<std::string_view> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  nibble::Console console;
  return nibble::run_program(nibble::all_commands(), arguments, nibble::process_environment(), console);
}
