#include "app/foreign_options.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr std::string_view use_dp = "give --dp N, or --ep N with --dp-attention";
constexpr std::string_view counts_all =
    "it has a number here, and --tp counts the ranks of all --dp groups: vLLM's --tensor-parallel-size 2 "
    "--data-parallel-size 2 is --tp 4 --dp 2";
constexpr std::string_view stages = "ranks divide every layer and none is a stage of some layers";
constexpr std::string_view here_or_there = "ranks are threads of one process, or of those of --nnodes";
constexpr std::string_view meets = "process 0 listens to the others at one address";
constexpr std::string_view no_steps = "tokens are exchanged by the kernels of a layer";
constexpr std::string_view use_exchange = "give --moe-a2a-backend none, normal or low_latency";
constexpr std::string_view gathers = "ranks gather whole sums, and --all-reduce says so";
constexpr std::string_view whole_contexts = "a context is on the ranks that have its heads";
constexpr std::string_view says_how_many = "the number of ranks is said with it";
constexpr std::string_view copies =
    "where memory allows every GPU has all experts, as the plan's row expert_copies says";
constexpr std::string_view looks_up =
    "drafts are looked up in the text itself, and no second model makes them";
constexpr std::string_view use_ngram =
    "give --speculative-algorithm ngram, with --speculative-num-draft-tokens N";
constexpr std::string_view leave = "leave it out";

constexpr ForeignOption list[] = {
    {"--enable-dp-lm-head", "SGLang", "lm_head is divided among the ranks that have the same sequences",
     leave},
    {"-dp", "vLLM", "it is spelled with two dashes", use_dp},
    {"--data-parallel-size-local", "vLLM", stages, use_dp},
    {"--data-parallel-backend", "vLLM", here_or_there, leave},
    {"--moe-dense-tp-size", "SGLang", "dense layers are divided as attention is", "give --tp N"},
    {"--moe-dp-size", "SGLang", "every expert is on one rank of --ep", "give --ep N"},
    {"--attention-context-parallel-size", "SGLang", whole_contexts, "give --tp N"},
    {"--decode-context-parallel-size", "vLLM", whole_contexts, "give --tp N"},
    {"-dcp", "vLLM", whole_contexts, "give --tp N"},
    {"--prefill-context-parallel-size", "vLLM", whole_contexts, "give --tp N"},
    {"-tp", "vLLM", "it is spelled with two dashes", "give --tp N"},
    {"--enable-expert-parallel", "vLLM", counts_all, "give --ep N, as many as all ranks"},
    {"--enable-ep-moe", "SGLang", says_how_many, "give --ep N"},
    {"--all2all-backend", "vLLM", "it has another name here", use_exchange},
    {"--deepep-mode", "SGLang", "the exchange's form has the exchange's name", use_exchange},
    {"--enable-deepep-moe", "SGLang", "it has another name here", use_exchange},
    {"--enable-two-batch-overlap", "SGLang", no_steps, leave},
    {"--enable-single-batch-overlap", "SGLang", no_steps, leave},
    {"--enable-dbo", "vLLM", no_steps, leave},
    {"--enable-eplb", "vLLM, SGLang", "experts stay where the plan has put them", leave},
    {"--ep-num-redundant-experts", "SGLang", copies, leave},
    {"--num-redundant-experts", "vLLM", copies, leave},
    {"--pipeline-parallel-size", "vLLM, SGLang", stages, "give --tp N"},
    {"--pp-size", "SGLang", stages, "give --tp N"},
    {"--pp", "SGLang", stages, "give --tp N"},
    {"-pp", "vLLM", stages, "give --tp N"},
    {"--master-addr", "vLLM", meets, "give --dist-init-addr HOST:PORT"},
    {"--master-port", "vLLM", meets, "give --dist-init-addr HOST:PORT"},
    {"--distributed-executor-backend", "vLLM", here_or_there, leave},
    {"--disable-custom-all-reduce", "vLLM, SGLang", "GPUs that reach each other's memory need no NCCL",
     "give --all-reduce nccl to have it all the same"},
    {"--enable-flashinfer-allreduce-fusion", "SGLang", gathers, leave},
    {"--flashinfer-allreduce-fusion-backend", "SGLang", gathers, leave},
    {"--enable-mscclpp", "SGLang", gathers, leave},
    {"--enable-symm-mem", "SGLang", gathers, leave},
    {"--enable-torch-symm-mem", "SGLang", gathers, leave},
    {"--enable-nccl-nvls", "SGLang", "NVLink multicast is never used", leave},
    {"--enable-deterministic-inference", "SGLang",
     "bits depend on neither the batch nor the ranks in any case", leave},
    {"--speculative-config", "vLLM", "it is said by options of its own", use_ngram},
    {"--speculative-draft-model-path", "SGLang", looks_up, use_ngram},
    {"--speculative-num-steps", "SGLang", looks_up, use_ngram},
    {"--speculative-eagle-topk", "SGLang", looks_up, use_ngram},
    {"--model-draft", "llama.cpp", looks_up, use_ngram},
    {"-md", "llama.cpp", looks_up, use_ngram},
    {"--init-expert-location", "SGLang", "experts stay where the plan has put them", leave},
};

}  // namespace

std::span<const ForeignOption> foreign_options() { return list; }

const ForeignOption* find_foreign_option(std::string_view name) {
  const auto found = std::find_if(std::begin(list), std::end(list),
                                  [&](const ForeignOption& option) { return option.name == name; });
  return found == std::end(list) ? nullptr : &*found;
}

}  // namespace nibble
