// nibble pull: a model from the Hugging Face hub into the cache.
#include <memory>
#include <string>

#include "app/commands.h"
#include "app/pull_model.h"

namespace nibble {
namespace {

struct Options {
  std::string model;
  PullRequest request;
};

Status run(const Options& options, Console& console) {
  PullRequest request = options.request;
  NIBBLE_ASSIGN(request.name, read_hub_name(options.model));
  NIBBLE_ASSIGN(const PullReport report, pull_model(request, console));
  std::fprintf(console.out, "%s\n", report.snapshot.c_str());
  return {};
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  PullRequest& request = options->request;
  CommandLine line;
  line.positionals = {{.name = "MODEL",
                       .help = "org/name, or org/name@revision: a branch, a tag or a commit",
                       .target = &options->model}};
  line.options = {{.name = "--connections",
                   .value = "N",
                   .help = "parts that are fetched at once",
                   .default_text = "8",
                   .set = int_value(request.connections, 1, 64)},
                  {.name = "--verify",
                   .help = "hold what is in the cache already against its hashes too",
                   .set = switch_value(request.verify)},
                  {.name = "--any-model",
                   .help = "also a model that nibble does not run",
                   .set = switch_value(request.any_model)}};
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command pull_command{.name = "pull",
                           .summary = "a model from the Hugging Face hub",
                           .example = "nibble pull openai/gpt-oss-20b",
                           .declare = declare};

}  // namespace nibble
