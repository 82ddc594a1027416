#include "ops/cuda/emulation/races.h"

#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>

#include "base/check.h"

namespace nibble::emulation {
namespace {

constexpr unsigned most_barriers = 128;  // of a block

// The program, as it lies in memory.
struct Image {
  const std::uint8_t* base = nullptr;
  std::size_t declared_bytes = 0;  // of variables that each thread of the operating system has
};

Image find_image() {
  const auto look = [](dl_phdr_info* info, std::size_t, void* to) {
    Image& found = *static_cast<Image*>(to);
    found.base = reinterpret_cast<const std::uint8_t*>(info->dlpi_addr);
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& part = info->dlpi_phdr[i];
      if (part.p_type == PT_TLS)
        found.declared_bytes = (part.p_memsz + part.p_align - 1) / part.p_align * part.p_align;
    }
    return 1;  // the first is the program itself
  };
  Image found;
  dl_iterate_phdr(look, &found);
  return found;
}

const Image& image() {
  static const Image found = find_image();
  return found;
}

struct Race {
  std::uint32_t before, now;  // places in the program
  std::string what;
};

struct Found {
  std::mutex mutex;
  std::vector<Race> races;
  std::set<std::pair<std::uint32_t, std::uint32_t>> places;
};

Found& found() {
  static Found all;
  return all;
}

// File and line, with those of the functions that it was inlined into.
std::string name_of(std::uint32_t place) {
  char command[96];
  std::snprintf(command, sizeof command, "addr2line -pie /proc/%d/exe 0x%x 2>&1", getpid(), place - 1);
  std::string name;
  if (FILE* const lines = popen(command, "r")) {
    char line[512];
    while (std::fgets(line, sizeof line, lines) != nullptr) name += line;
    pclose(lines);
  }
  return name;
}

}  // namespace

bool Past::knows(unsigned strand, Time time) const {
  // What engines do for a thread may be over for others first, who waited where it did not.
  if (strand - first < strands && own[strand - first] >= time) return true;
  if (strand == this->strand(products) && own[products] >= time) return true;
  return (*others)[strand] >= time;
}

void Gathering::make_room(const Times& times) {
  if (times_.size() < times.size()) times_.resize(times.size());
}

void Gathering::add(const Known& known) {
  if (known == last_) return;
  make_room(*known);
  for (std::size_t i = 0; i < known->size(); ++i) times_[i] = std::max(times_[i], (*known)[i]);
  last_ = known;
}

void Gathering::add(const Past& past) {
  add(past.others);
  for (unsigned i = 0; i < strands; ++i) add(past.strand(i), past.own[i]);
}

void Gathering::add(unsigned strand, Time time) {
  if (times_.size() <= strand) times_.resize(strand + 1);
  times_[strand] = std::max(times_[strand], time);
}

Known Gathering::take() {
  last_ = nullptr;
  return std::make_shared<const Times>(std::exchange(times_, {}));
}

RaceWatch::RaceWatch(const Shape& shape, const std::uint8_t* dynamic, std::size_t dynamic_bytes)
    : shape_(shape),
      dynamic_(dynamic),
      dynamic_bytes_((dynamic_bytes + granule_bytes - 1) / granule_bytes * granule_bytes),
      declared_(static_cast<const std::uint8_t*>(__builtin_thread_pointer()) - image().declared_bytes),
      declared_bytes_(image().declared_bytes),
      granules_(static_cast<Granule*>(
          std::calloc((dynamic_bytes_ + declared_bytes_) / granule_bytes + 1, sizeof(Granule)))),
      pasts_(shape.threads) {
  NIBBLE_CHECK(granules_ != nullptr, "the host has no memory for the watch of shared memory");
  const auto nothing = std::make_shared<const Times>(static_cast<std::size_t>(shape.cluster) *
                                                     (shape.threads * strands + most_barriers));
  for (unsigned thread = 0; thread < shape.threads; ++thread) {
    Past& past = pasts_[thread];
    past.others = nothing;
    past.first = (shape.rank * shape.threads + thread) * strands;
    past.first_of_warp = (shape.rank * shape.threads + thread / 32 * 32) * strands;
    past.own[program] = 1;
  }
}

void RaceWatch::Free::operator()(Granule* granules) const { std::free(granules); }

unsigned RaceWatch::add_barrier() {
  NIBBLE_CHECK(barriers_ < most_barriers, "more barriers of a block than the watch has room for");
  return shape_.cluster * shape_.threads * strands + shape_.rank * most_barriers + barriers_++;
}

void RaceWatch::access(unsigned thread, const void* at, std::size_t bytes, const Access& access) {
  const Past& past = pasts_[thread];
  record(past, past.strand(program), past.own[program], at, bytes, access);
}

void RaceWatch::product_read(unsigned thread, const void* at, std::size_t bytes, const void* place) {
  const Past& past = pasts_[thread];
  record(past, past.strand(products), past.asked[products] + 1, at, bytes,
         {.by_engine = true, .place = place});
}

void RaceWatch::bulk_read(unsigned thread, const void* at, std::size_t bytes, const void* place) {
  Past& past = pasts_[thread];
  record(past, past.strand(bulk_reads), ++past.asked[bulk_reads], at, bytes,
         {.by_engine = true, .place = place});
}

void RaceWatch::copy(unsigned thread, const void* at, std::size_t bytes, const void* place) {
  Past& past = pasts_[thread];
  record(past, past.strand(copies), ++past.asked[copies], at, bytes, {.write = true, .place = place});
}

void RaceWatch::bulk_write(const Past& past, const void* at, std::size_t bytes, unsigned barrier_strand,
                           Time end, const void* place) {
  record(past, barrier_strand, end, at, bytes, {.write = true, .by_engine = true, .place = place});
}

// What is written from here on is not behind the fence.
void RaceWatch::fence(unsigned thread) {
  Past& past = pasts_[thread];
  past.own[fenced] = past.own[program]++;
}

void RaceWatch::await_products(unsigned thread, unsigned but) {
  Past& past = pasts_[thread];
  if (past.asked[products] > but)
    past.own[products] = std::max(past.own[products], past.asked[products] - but);
}

void RaceWatch::hand(unsigned thread, Gathering& to) {
  to.add(pasts_[thread]);
  ++pasts_[thread].own[program];
}

void RaceWatch::hand_after_copies(unsigned thread, Gathering& to) {
  hand(thread, to);
  to.add(pasts_[thread].strand(copies), pasts_[thread].asked[copies]);
}

Known RaceWatch::hand(unsigned thread) {
  Gathering alone;
  hand(thread, alone);
  return alone.take();
}

void RaceWatch::learn(unsigned thread, const Known& known) {
  Known& others = pasts_[thread].others;
  if (known == nullptr || known == others) return;
  const auto both = std::make_pair(others, known);
  if (joined_ != both) {
    Gathering gathering;
    gathering.add(others);
    gathering.add(known);
    joint_ = gathering.take();
    joined_ = both;
  }
  others = joint_;
}

void RaceWatch::record(const Past& past, unsigned strand, Time time, const void* at, std::size_t bytes,
                       const Access& access) {
  const auto* begin = static_cast<const std::uint8_t*>(at);
  const auto into = [begin](const std::uint8_t* memory) {
    return reinterpret_cast<std::uintptr_t>(begin) - reinterpret_cast<std::uintptr_t>(memory);
  };
  std::size_t offset = into(dynamic_);
  if (offset >= dynamic_bytes_) {
    if (into(declared_) >= declared_bytes_) return;
    offset = dynamic_bytes_ + into(declared_);
  }
  Cell now{.strand = strand,
           .time = time,
           .place = static_cast<std::uint32_t>(static_cast<const std::uint8_t*>(access.place) - image().base),
           .bytes = 0,
           .write = access.write,
           .atomic = access.atomic,
           .by_engine = access.by_engine};
  while (bytes > 0) {
    const std::size_t skipped = offset % granule_bytes, count = std::min(bytes, granule_bytes - skipped);
    now.bytes = static_cast<std::uint8_t>(((1u << count) - 1) << skipped);
    record(past, granules_[offset / granule_bytes], now);
    offset += count;
    bytes -= count;
  }
}

void RaceWatch::record(const Past& past, Granule& granule, const Cell& now) {
  Cell* place = nullptr;
  for (Cell& before : granule) {
    if (before.time == 0) {
      place = &before;
      continue;
    }
    const bool from_program = before.strand % strands == program && !before.by_engine;
    if (from_program && before.strand == now.strand && before.write == now.write &&
        before.atomic == now.atomic && before.bytes == now.bytes) {
      if (before.time == now.time) return;
      before.time = 0;  // who comes after `now` comes after it
      place = &before;
      continue;
    }
    // Who reads beside a reader, or other bytes, neither disturbs it nor comes in its place.
    const bool both_read = !before.write && !now.write;
    if ((before.bytes & now.bytes) == 0) continue;
    // An engine sees what a program wrote behind that thread's fence.
    const bool over = past.knows(
        before.strand + (now.by_engine && before.write && from_program ? fenced : program), before.time);
    if (!over && !both_read && !(before.atomic && now.atomic)) report(before, now);
    if ((before.bytes & ~now.bytes) == 0 && (now.write || (both_read && over))) {
      before.time = 0;
      place = &before;
    }
  }
  // With more at once than a granule has room for, a race may go unseen here, but hardly in all its granules.
  if (place == nullptr) place = &granule[next_victim_++ % cells];
  *place = now;
}

void RaceWatch::report(const Cell& before, const Cell& now) const {
  Found& all = found();
  const std::lock_guard lock(all.mutex);
  if (!all.places.insert({before.place, now.place}).second) return;
  const auto describe = [&](const Cell& cell) {
    const unsigned threads = shape_.cluster * shape_.threads;
    std::string who = cell.strand >= threads * strands
                          ? "a bulk copy"
                          : "thread " + std::to_string(cell.strand / strands % shape_.threads);
    return who + (cell.write ? " writes" : " reads") + (cell.atomic ? " atomically" : "") +
           (cell.by_engine ? " by an engine" : "");
  };
  all.races.push_back({before.place, now.place, describe(before) + ", " + describe(now)});
}

std::vector<std::string> take_races() {
  Found& all = found();
  const std::lock_guard lock(all.mutex);
  std::vector<std::string> texts;
  for (const Race& race : all.races)
    texts.push_back("nothing orders " + race.what + "\n at " + name_of(race.before) + " and " +
                    name_of(race.now));
  all.races.clear();
  all.places.clear();
  return texts;
}

}  // namespace nibble::emulation
