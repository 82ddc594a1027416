#include "app/loaded_model.h"

#include <optional>
#include <thread>

#include "checkpoint/model_location.h"

namespace nibble {

Result<LoadedModel> load_model(const EngineOptions& options,
                               const std::function<void(double, double)>& progress) {
  NIBBLE_ASSIGN(const ModelLocation location,
                locate_model(options.model, LocationEnvironment::of_this_process()));
  std::optional<Result<Tokenizer>> tokenizer;
  std::thread reader([&] { tokenizer = Tokenizer::load(location.folder); });
  Result<std::unique_ptr<Engine>> engine = Engine::load(options, progress);
  reader.join();
  NIBBLE_RETURN_IF_ERROR(engine.status());
  NIBBLE_RETURN_IF_ERROR(tokenizer->status());
  return LoadedModel{.engine = std::move(engine).value(), .tokenizer = std::move(*tokenizer).value()};
}

}  // namespace nibble
