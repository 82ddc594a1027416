// Options of vLLM and SGLang for several GPUs that mean nothing here, or something under another name. Those
// that mean the same are aliases of ours (base/options.cpp).
#pragma once

#include <span>
#include <string_view>

namespace nibble {

struct ForeignOption {
  std::string_view name, from;
  std::string_view because, instead;  // what is so here; what to do
};

std::span<const ForeignOption> foreign_options();
const ForeignOption* find_foreign_option(std::string_view name);

}  // namespace nibble
