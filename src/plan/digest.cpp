#include "plan/digest.h"

#include <algorithm>

namespace nibble {
namespace {

std::uint64_t fnv1a(std::string_view text, std::uint64_t hash) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

std::string value_of(const RankDigest& digest, const std::string& field) {
  for (const auto& [name, value] : digest.fields) {
    if (name == field) return value;
  }
  return "nothing";
}

// "kv_pages is 512 on ranks 0, 2 and 640 on rank 1"
std::string difference(std::span<const RankDigest> digests, const std::string& field) {
  std::vector<std::pair<std::string, std::vector<int>>> values;
  for (const RankDigest& digest : digests) {
    const std::string value = value_of(digest, field);
    auto same =
        std::find_if(values.begin(), values.end(), [&](const auto& each) { return each.first == value; });
    if (same == values.end()) same = values.insert(values.end(), {value, {}});
    same->second.push_back(digest.rank);
  }
  if (values.size() < 2) return {};
  std::string text = field + " is ";
  for (std::size_t i = 0; i < values.size(); ++i) {
    text += (i == 0                   ? ""
             : i + 1 == values.size() ? " and "
                                      : ", ") +
            values[i].first + (values[i].second.size() == 1 ? " on rank " : " on ranks ");
    for (std::size_t k = 0; k < values[i].second.size(); ++k)
      text += (k == 0 ? "" : ", ") + std::to_string(values[i].second[k]);
  }
  return text;
}

}  // namespace

std::uint64_t RankDigest::hash() const {
  std::uint64_t hash = 14695981039346656037ull;
  for (const auto& [name, value] : fields) hash = fnv1a(value, fnv1a("=", fnv1a(name, fnv1a("\n", hash))));
  return hash;
}

RankDigest digest_of(const Plan& plan, int rank) {
  RankDigest digest{.rank = rank, .fields = {{"model", plan.model.name}}};
  for (const Choice& choice : plan.choices) digest.fields.emplace_back(choice.field, choice.value);
  const MemoryPlan& memory = plan.memory;
  digest.fields.emplace_back("bytes of weights", std::to_string(memory.weights));
  digest.fields.emplace_back("bytes of keys and values", std::to_string(memory.kv));
  digest.fields.emplace_back("bytes of workspace", std::to_string(memory.workspace));
  for (const GateResult& gate : plan.gates) {
    digest.fields.emplace_back("gate " + gate.name,
                               gate.found + " (" + std::string(gate_status_name(gate.status)) + ")");
  }
  return digest;
}

Status compare_ranks(std::span<const RankDigest> digests) {
  if (digests.empty()) return {};
  const std::uint64_t first = digests[0].hash();
  if (std::all_of(digests.begin(), digests.end(),
                  [&](const RankDigest& each) { return each.hash() == first; }))
    return {};
  std::vector<std::string> fields;
  for (const RankDigest& digest : digests) {
    for (const auto& field : digest.fields) {
      if (std::find(fields.begin(), fields.end(), field.first) == fields.end()) fields.push_back(field.first);
    }
  }
  std::string all;
  for (const std::string& field : fields) {
    const std::string one = difference(digests, field);
    if (!one.empty()) all += (all.empty() ? "" : "; ") + one;
  }
  return invalid_argument("the ranks have not made the same plan: " + all +
                          "; start them with the same options, libraries and files");
}

}  // namespace nibble
