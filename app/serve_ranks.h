// nibble serve in a process that is not the first of several: it has no clients, runs the first one's steps,
// and ends when that one does.
#pragma once

#include "app/cli.h"
#include "app/serve_options.h"
#include "base/status.h"

namespace nibble {

Status serve_ranks(const ServeOptions& options, Console& console);

}  // namespace nibble
