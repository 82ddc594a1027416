// Everything an engine chooses before it takes memory. What the user set is honoured or refused; the list
// says for each choice where it came from and why.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/options.h"
#include "base/status.h"
#include "checkpoint/model_config.h"
#include "engine/engine.h"
#include "runtime/worker.h"
#include "sched/scheduler.h"

namespace nibble {

struct EngineChoices {
  SchedulerLimits scheduler;
  PageCacheOptions cache;
  bool plan_ahead = false;  // plan the next step while one runs
  WorkerLimits worker;
  std::vector<EngineChoice> list;
};

Result<EngineChoices> make_choices(const EngineOptions& options, const ModelConfig& config,
                                   std::int64_t weight_bytes);

// Engine::load, with a last word on the choices before memory is taken; `change` may be empty.
Result<std::unique_ptr<Engine>> load_engine(const EngineOptions& options,
                                            const std::function<void(EngineChoices&)>& change,
                                            const std::function<void(double done, double total)>& progress);

}  // namespace nibble
