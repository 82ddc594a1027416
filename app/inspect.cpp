// nibble inspect: what lies in a checkpoint and everything that is wrong with it.
#include "checkpoint/inspect.h"

#include <algorithm>
#include <cinttypes>
#include <memory>
#include <string>

#include "app/amount.h"
#include "app/commands.h"
#include "base/json_writer.h"
#include "base/quote.h"
#include "checkpoint/model_location.h"

namespace nibble {
namespace {

struct Options {
  std::string model;
  bool json = false;
};

// A name from a file: as it is where it is plain, quoted and escaped where it is not.
std::string shown(const std::string& name) {
  std::string quoted = quote(name);
  return quoted == "\"" + name + "\"" ? name : quoted;
}

bool keeps_state(const LayerDescription& layer) { return layer.mixer == Mixer::gated_delta; }

const char* layer_type(const LayerDescription& layer) {
  if (keeps_state(layer)) return "linear_attention";
  if (layer.mixer == Mixer::latent) return "latent_attention";
  return layer.window > 0 ? "sliding_attention" : "full_attention";
}

void print_attention(const ModelConfig& config, Console& console) {
  std::fprintf(console.out, "attention      %" PRId64 " heads of %" PRId64, config.num_attention_heads,
               config.head_dim);
  if (config.latent.rank > 0) {
    std::fprintf(console.out,
                 ", values of %" PRId64 "; a latent of %" PRId64 " + %" PRId64 " a position for all heads",
                 config.latent.value_dim, config.latent.rank, config.latent.rotated_dim);
    return;
  }
  std::fprintf(console.out, ", %" PRId64 " key-value heads", config.num_key_value_heads);
}

void print_config(const ModelConfig& config, Console& console) {
  const auto sliding = std::count_if(config.layers.begin(), config.layers.end(),
                                     [](const LayerDescription& layer) { return layer.window > 0; });
  std::fprintf(console.out, "architecture   %s\n", config.architecture.c_str());
  std::fprintf(console.out, "layers         %" PRId64 " of width %" PRId64 "\n", config.num_hidden_layers,
               config.hidden_size);
  print_attention(config, console);
  if (sliding > 0) {
    std::fprintf(console.out, "; a window of %" PRId64 " on %td of %" PRId64 " layers", config.sliding_window,
                 sliding, config.num_hidden_layers);
  }
  const auto states = std::count_if(config.layers.begin(), config.layers.end(), keeps_state);
  if (states > 0) {
    std::fprintf(console.out, "; a state instead on %td of %" PRId64 " layers", states,
                 config.num_hidden_layers);
    std::fprintf(console.out,
                 "\nstates         %" PRId64 " heads of %" PRId64 " x %" PRId64 ", %" PRId64
                 " heads of keys, a convolution over %" PRId64,
                 config.delta.value_heads, config.delta.key_dim, config.delta.value_dim,
                 config.delta.key_heads, config.delta.taps);
  }
  std::fprintf(console.out, "\nexperts        %" PRId64 " of width %" PRId64 ", %" PRId64 " a token",
               config.num_local_experts, config.intermediate_size, config.num_experts_per_tok);
  if (config.shared_width > 0)
    std::fprintf(console.out, "; one of width %" PRId64 " for all", config.shared_width);
  const auto dense =
      std::count_if(config.layers.begin(), config.layers.end(),
                    [](const LayerDescription& layer) { return layer.feed_forward == FeedForward::dense; });
  if (dense > 0) {
    std::fprintf(console.out, "; %td of %" PRId64 " layers have one of width %" PRId64 " instead", dense,
                 config.num_hidden_layers, config.dense_width);
  }
  std::fprintf(console.out, "\n");
  std::fprintf(console.out, "vocabulary     %" PRId64 " tokens\n", config.vocab_size);
  std::fprintf(console.out, "context        %" PRId64 " tokens\n", config.max_position_embeddings);
}

void print_tables(const Inspection& report, Console& console) {
  std::fprintf(console.out, "\n%-14s %8s %16s %16s\n", "format", "tensors", "parameters", "bytes");
  for (const FormatTotal& total : report.formats) {
    std::fprintf(console.out, "%-14s %8" PRId64 " %16" PRId64 " %16" PRId64 "\n", total.format.c_str(),
                 total.tensors, total.parameters, total.bytes);
  }
  std::size_t width = 6;
  for (const InspectedTensor& tensor : report.tensors) width = std::max(width, shown(tensor.name).size());
  const int columns = static_cast<int>(std::min<std::size_t>(width, 64));
  std::fprintf(console.out, "\n%-*s %-12s %-24s %14s\n", columns, "tensor", "format", "shape", "bytes");
  for (const InspectedTensor& tensor : report.tensors) {
    std::fprintf(console.out, "%-*s %-12s %-24s %14" PRId64 "\n", columns, shown(tensor.name).c_str(),
                 tensor.format.c_str(), tensor.shape.to_string().c_str(), tensor.bytes);
  }
}

void print_report(const Inspection& report, const ModelLocation& location, Console& console) {
  std::fprintf(console.out, "model          %s\n", shown(location.name).c_str());
  std::fprintf(console.out, "folder         %s\n", shown(location.folder.native()).c_str());
  if (report.config) print_config(*report.config, console);
  std::fprintf(console.out, "parameters     %s\n", scaled_count(report.total.parameters).c_str());
  std::fprintf(console.out, "bytes          %s\n", scaled_bytes(report.total.bytes).c_str());
  if (report.active_bytes) {
    std::fprintf(console.out, "a token reads  %s\n", scaled_bytes(*report.active_bytes).c_str());
  }
  for (const LeftAlone& each : report.left_alone) {
    std::fprintf(console.out, "left alone     %s: %" PRId64 " tensors, %s\n", each.what.c_str(), each.tensors,
                 scaled_bytes(each.bytes).c_str());
  }
  if (!report.tensors.empty()) print_tables(report, console);
  const auto hidden = report.problems.count() - static_cast<std::int64_t>(report.problems.kept().size());
  std::fprintf(console.out, "\nproblems       %s\n",
               report.problems.empty() ? "none" : std::to_string(report.problems.count()).c_str());
  for (const Status& problem : report.problems.kept()) {
    std::fprintf(console.out, "  %s\n", problem.message().c_str());
  }
  if (hidden > 0) std::fprintf(console.out, "  and %" PRId64 " more\n", hidden);
}

void write_config(const ModelConfig& config, JsonWriter& json) {
  json.begin_object();
  json.member("architecture", config.architecture)
      .member("vocab_size", config.vocab_size)
      .member("hidden_size", config.hidden_size)
      .member("num_hidden_layers", config.num_hidden_layers)
      .member("max_position_embeddings", config.max_position_embeddings)
      .member("rms_norm_eps", config.rms_norm_eps)
      .member("tie_word_embeddings", config.tie_word_embeddings)
      .member("num_attention_heads", config.num_attention_heads)
      .member("num_key_value_heads", config.num_key_value_heads)
      .member("head_dim", config.head_dim)
      .member("attention_bias", config.attention_bias)
      .member("sliding_window", config.sliding_window)
      .member("rope_theta", config.rope_theta)
      .member("num_local_experts", config.num_local_experts)
      .member("num_experts_per_tok", config.num_experts_per_tok)
      .member("intermediate_size", config.intermediate_size)
      .member("swiglu_limit", config.swiglu_limit)
      .member("shared_width", config.shared_width)
      .member("rotary_dim", config.rotary_dim)
      .member("dense_width", config.dense_width);
  json.key("latent");
  if (config.latent.rank > 0) {
    json.begin_object()
        .member("query_rank", config.latent.query_rank)
        .member("rank", config.latent.rank)
        .member("plain_dim", config.latent.plain_dim)
        .member("rotated_dim", config.latent.rotated_dim)
        .member("value_dim", config.latent.value_dim)
        .end_object();
  } else {
    json.null();
  }
  json.key("layer_types").begin_array();
  for (const LayerDescription& layer : config.layers) json.value(layer_type(layer));
  json.end_array().key("yarn");
  if (config.yarn) {
    json.begin_object()
        .member("factor", config.yarn->factor)
        .member("beta_fast", config.yarn->beta_fast)
        .member("beta_slow", config.yarn->beta_slow)
        .member("original_max_position_embeddings", config.yarn->original_max_position_embeddings)
        .member("truncate", config.yarn->truncate)
        .member("attention_factor", config.yarn->attention_factor)
        .end_object();
  } else {
    json.null();
  }
  json.key("eos_token_ids").begin_array();
  for (const TokenId id : config.eos_token_ids) json.value(id);
  json.end_array().end_object();
}

void write_total(const FormatTotal& total, JsonWriter& json) {
  json.begin_object();
  if (!total.format.empty()) json.member("format", total.format);
  json.member("tensors", total.tensors).member("parameters", total.parameters).member("bytes", total.bytes);
  json.end_object();
}

std::string json_text(const Inspection& report, const ModelLocation& location) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("model", location.name).member("folder", location.folder.native()).key("config");
  if (report.config) {
    write_config(*report.config, json);
  } else {
    json.null();
  }
  json.key("total");
  write_total(report.total, json);
  json.key("active_bytes_per_token");
  if (report.active_bytes) {
    json.value(*report.active_bytes);
  } else {
    json.null();
  }
  json.key("left_alone").begin_array();
  for (const LeftAlone& each : report.left_alone) {
    json.begin_object()
        .member("what", each.what)
        .member("tensors", each.tensors)
        .member("bytes", each.bytes)
        .end_object();
  }
  json.end_array().key("formats").begin_array();
  for (const FormatTotal& total : report.formats) write_total(total, json);
  json.end_array().key("tensors").begin_array();
  for (const InspectedTensor& tensor : report.tensors) {
    json.begin_object()
        .member("name", tensor.name)
        .member("file", tensor.file)
        .member("format", tensor.format);
    json.key("shape").begin_array();
    for (const std::int64_t extent : tensor.shape.extents()) json.value(extent);
    json.end_array().member("bytes", tensor.bytes).end_object();
  }
  json.end_array().key("problems").begin_array();
  for (const Status& problem : report.problems.kept()) json.value(problem.message());
  json.end_array().member("problem_count", report.problems.count()).end_object();
  return text + "\n";
}

Status run(const Options& options, Console& console) {
  NIBBLE_ASSIGN(const ModelLocation location,
                locate_model(options.model, LocationEnvironment::of_this_process()));
  const Inspection report = inspect_model(location.folder);
  if (options.json) {
    const std::string text = json_text(report, location);
    std::fwrite(text.data(), 1, text.size(), console.out);
  } else {
    print_report(report, location, console);
  }
  if (report.problems.empty()) return {};
  const std::string first = report.problems.first().message();
  if (report.problems.count() == 1) return broken_model(first);
  return broken_model(std::to_string(report.problems.count()) + " problems, the first: " + first);
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  CommandLine line;
  line.positionals = {{.name = "MODEL",
                       .help = "a directory, a name in the Hugging Face cache, or demo",
                       .target = &options->model}};
  line.options = {{.name = "--json", .help = "one line of JSON", .set = switch_value(options->json)}};
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command inspect_command{.name = "inspect",
                              .summary = "tensors, formats, sizes; what is wrong with a checkpoint",
                              .example = "nibble inspect demo",
                              .declare = declare};

}  // namespace nibble
