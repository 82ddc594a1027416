// nibble list: the models of the Hugging Face cache, which of them run here, and why the others do not.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "app/amount.h"
#include "app/cached_models.h"
#include "app/commands.h"
#include "base/json_writer.h"
#include "base/quote.h"
#include "hub/cache_contents.h"
#include "hub/cache_place.h"
#include "plan/plan.h"
#include "runtime/gpu.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct Options {
  bool json = false;
};

struct Row {
  std::string name;
  const CachedRevision* revision = nullptr;
  ModelVerdict verdict;
};

std::vector<Row> judge(const std::vector<CachedRepository>& repositories) {
  const Machine machine = probe_machine_with_gpus();
  std::vector<Row> rows;
  for (const CachedRepository& repository : repositories) {
    for (const CachedRevision& revision : repository.revisions)
      rows.push_back({.name = repository.name,
                      .revision = &revision,
                      .verdict = judge_model(revision.folder, repository.name, machine)});
  }
  return rows;
}

// The references, or the beginning of the commit where none names it. Names of files are strangers' text.
std::string shown_revision(const CachedRevision& revision) {
  std::string shown;
  for (const std::string& reference : revision.refs) shown += (shown.empty() ? "" : ", ") + escape(reference);
  return shown.empty() ? escape(revision.commit.substr(0, 12)) : shown;
}

std::string shown_verdict(const ModelVerdict& verdict) {
  if (!verdict.runs) return "no: " + verdict.why_not;
  return "yes, with " + scaled_bytes(verdict.memory_bytes) + (verdict.device == "cpu" ? "" : " on a GPU") +
         " for " + grouped(verdict.conversation_tokens) + " tokens";
}

void print_table(const std::vector<CachedRepository>& repositories, const std::vector<Row>& rows,
                 Console& console) {
  std::size_t name_width = 5, revision_width = 8;
  for (const Row& row : rows) {
    name_width = std::max(name_width, row.name.size());
    revision_width = std::max(revision_width, shown_revision(*row.revision).size());
  }
  if (!rows.empty())
    std::fprintf(console.out, "%-*s  %-*s  %8s  runs here\n", static_cast<int>(name_width), "model",
                 static_cast<int>(revision_width), "revision", "size");
  for (const Row& row : rows)
    std::fprintf(console.out, "%-*s  %-*s  %8s  %s\n", static_cast<int>(name_width), row.name.c_str(),
                 static_cast<int>(revision_width), shown_revision(*row.revision).c_str(),
                 scaled_bytes(row.revision->bytes).c_str(), shown_verdict(row.verdict).c_str());
  for (const CachedRepository& repository : repositories) {
    if (repository.unfinished_bytes() > 0)
      std::fprintf(console.out, "%s: %s of an unfinished download; \"nibble pull %s\" goes on with it\n",
                   repository.name.c_str(), scaled_bytes(repository.unfinished_bytes()).c_str(),
                   repository.name.c_str());
  }
}

void write_row(const Row& row, JsonWriter& json) {
  const ModelVerdict& verdict = row.verdict;
  json.begin_object().member("model", row.name).member("revision", row.revision->commit);
  json.key("refs").begin_array();
  for (const std::string& reference : row.revision->refs) json.value(reference);
  json.end_array().member("folder", row.revision->folder.native()).member("bytes", row.revision->bytes);
  json.member("runs", verdict.runs).key("why_not");
  verdict.runs ? json.null() : json.value(verdict.why_not);
  json.key("architecture");
  verdict.architecture.empty() ? json.null() : json.value(verdict.architecture);
  json.key("memory");
  if (verdict.memory_bytes == 0) {
    json.null();
  } else {
    json.begin_object().member("bytes", verdict.memory_bytes).member("device", verdict.device);
    json.member("tokens", verdict.conversation_tokens).end_object();
  }
  json.end_object();
}

std::string json_text(const fs::path& cache, const std::vector<CachedRepository>& repositories,
                      const std::vector<Row>& rows) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("cache", cache.native()).key("models").begin_array();
  for (const Row& row : rows) write_row(row, json);
  json.end_array().key("unfinished").begin_array();
  for (const CachedRepository& repository : repositories) {
    if (repository.unfinished_bytes() == 0) continue;
    json.begin_object().member("model", repository.name);
    json.member("bytes", repository.unfinished_bytes()).end_object();
  }
  json.end_array().end_object();
  return text + "\n";
}

Status run(const Options& options, Console& console) {
  NIBBLE_ASSIGN(const fs::path cache, required_hub_cache(HubEnvironment::of_this_process()));
  NIBBLE_ASSIGN(const std::vector<CachedRepository> repositories, scan_cache(cache));
  const std::vector<Row> rows = judge(repositories);
  if (options.json) {
    const std::string text = json_text(cache, repositories, rows);
    std::fwrite(text.data(), 1, text.size(), console.out);
    return {};
  }
  print_table(repositories, rows, console);
  if (rows.empty())
    std::fprintf(console.err, "no models in %s; \"nibble pull openai/gpt-oss-20b\" gets one\n",
                 quote(cache.native()).c_str());
  return {};
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  CommandLine line;
  line.options = {{.name = "--json", .help = "one line of JSON", .set = switch_value(options->json)}};
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command list_command{.name = "list",
                           .summary = "models in the Hugging Face cache, and which run here",
                           .example = "nibble list --json",
                           .declare = declare};

}  // namespace nibble
