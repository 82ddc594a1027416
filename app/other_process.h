// Of several processes that share a model's ranks all but the first run that one's steps, whatever command
// they were started with.
#pragma once

#include <optional>

#include "base/options.h"
#include "base/status.h"
#include "engine/engine.h"

namespace nibble {

// The options with what mpirun says. Every command that loads an engine asks for them first.
Result<EngineOptions> options_of_process(const EngineOptions& options);

// Runs the steps of the first process until it ends. Nothing where this process is the first or the only one.
std::optional<Status> run_steps_of_another(const EngineOptions& options, const Following& following = {});

}  // namespace nibble
