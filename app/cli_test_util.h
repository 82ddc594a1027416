// The program in a test, with what it prints caught.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "app/cli.h"

namespace nibble {

struct Outcome {
  int code = 0;
  std::string out, err;
};

inline Outcome run_caught(std::span<const Command* const> commands,
                          std::span<const std::string_view> arguments, const Environment& environment = {}) {
  char* texts[2] = {};
  std::size_t sizes[2] = {};
  Console console{.out = open_memstream(&texts[0], &sizes[0]), .err = open_memstream(&texts[1], &sizes[1])};
  Outcome outcome;
  outcome.code = run_program(commands, arguments, environment, console);
  std::fclose(console.out);
  std::fclose(console.err);
  outcome.out.assign(texts[0], sizes[0]);
  outcome.err.assign(texts[1], sizes[1]);
  std::free(texts[0]);
  std::free(texts[1]);
  return outcome;
}

}  // namespace nibble
