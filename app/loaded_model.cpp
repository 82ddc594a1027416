#include "app/loaded_model.h"

#include <optional>
#include <thread>

#include "base/quote.h"
#include "checkpoint/model_location.h"

namespace nibble {

Result<LoadedModel> load_model(const EngineOptions& options,
                               const std::function<void(double, double)>& progress) {
  NIBBLE_ASSIGN(const ModelLocation location,
                locate_model(options.model, LocationEnvironment::of_this_process()));
  std::optional<FileLock> in_use = FileLock::try_folder(location.folder, true);
  if (!in_use)
    return not_found("model " + quote(options.model) + " is being removed; get it again with nibble pull");
  std::optional<Result<Tokenizer>> tokenizer;
  std::thread reader([&] { tokenizer = Tokenizer::load(location.folder); });
  Result<std::unique_ptr<Engine>> engine = Engine::load(options, progress);
  reader.join();
  NIBBLE_RETURN_IF_ERROR(engine.status());
  NIBBLE_RETURN_IF_ERROR(tokenizer->status());
  return LoadedModel{.engine = std::move(engine).value(),
                     .tokenizer = std::move(*tokenizer).value(),
                     .in_use = std::move(*in_use)};
}

}  // namespace nibble
