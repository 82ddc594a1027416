#include "runtime/owner_logits.h"

#include <span>
#include <utility>

#include "comm/collectives.h"

namespace nibble {

Result<OwnerLogits> OwnerLogits::join(const WorkerLimits& limits, std::size_t slot_bytes,
                                      const Communicator::Options& options) {
  OwnerLogits all;
  if (limits.owners == 1 || options.links == nullptr) return all;
  const int sharers = limits.ranks / limits.owners;
  for (int owner = 1; owner < limits.owners; ++owner) {
    const int rank = owner * sharers;
    if (options.links->are_together(0, rank)) continue;
    NIBBLE_ASSIGN(std::vector<Communicator> members,
                  communicators_of({.members = {0, rank}}, slot_bytes, options));
    if (options.links->has(0)) all.ends_.push_back({owner, std::move(members[taker])});
    if (options.links->has(rank)) all.ends_.push_back({owner, std::move(members[giver])});
  }
  all.givers_.assign(static_cast<std::size_t>(limits.max_logit_rows), giver);
  return all;
}

Status OwnerLogits::travel(int rank, const OwnerSteps& steps, std::int64_t vocabulary, float* logits) {
  for (End& end : ends_) {
    const Communicator& own = end.communicator;
    if (own.group().members[static_cast<std::size_t>(own.member())] != rank) continue;
    const OwnerSteps::Step& step = steps.of(end.owner);
    NIBBLE_RETURN_IF_ERROR(
        gather_rows(end.communicator, {.owners = std::span(givers_).first(step.batch.logit_rows.size()),
                                       .width = vocabulary,
                                       .rows = logits + step.logit_begin * vocabulary}));
  }
  return {};
}

}  // namespace nibble
