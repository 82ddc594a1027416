// A plan in the terms of the scheduler and the worker: what an engine is told before it takes memory.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/options.h"
#include "base/status.h"
#include "checkpoint/model_config.h"
#include "engine/engine.h"
#include "plan/plan.h"
#include "runtime/worker.h"
#include "sched/scheduler.h"

namespace nibble {

struct EngineChoices {
  SchedulerLimits scheduler;
  PageCacheOptions cache;  // of each owner of sequences
  int owners = 1;
  bool plan_ahead = false;  // plan the next step while one runs
  WorkerLimits worker;
  Plan plan;
};

// The plan for this machine; refused where it cannot run here.
Result<EngineChoices> make_choices(const EngineOptions& options, const ModelConfig& config,
                                   const std::string& name);

// Engine::load, with a last word on the choices before memory is taken; `change` may be empty.
Result<std::unique_ptr<Engine>> load_engine(const EngineOptions& options,
                                            const std::function<void(EngineChoices&)>& change,
                                            const std::function<void(double done, double total)>& progress);

}  // namespace nibble
