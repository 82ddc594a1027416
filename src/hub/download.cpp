#include "hub/download.h"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <thread>

#include "base/quote.h"
#include "base/thread_name.h"
#include "hub/retry.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kWatchInterval{200};
constexpr std::int64_t kMostRunBlocks = 32;
constexpr std::int64_t kMostIgnored = std::int64_t{1} << 20;
// A try that brought this much before it broke off was no fruitless one.
constexpr std::int64_t kSomeProgress = std::int64_t{64} << 10;

// "bytes 0-99/1000" as its three numbers; nothing where it is none.
struct ContentRange {
  std::int64_t first = 0, last = 0, total = 0;
};
std::optional<ContentRange> read_content_range(std::string_view text) {
  if (!text.starts_with("bytes ")) return std::nullopt;
  text.remove_prefix(6);
  ContentRange range;
  const char* const end = text.data() + text.size();
  const auto [dash, first_error] = std::from_chars(text.data(), end, range.first);
  if (first_error != std::errc() || dash == end || *dash != '-') return std::nullopt;
  const auto [slash, last_error] = std::from_chars(dash + 1, end, range.last);
  if (last_error != std::errc() || slash == end || *slash != '/') return std::nullopt;
  const auto [rest, total_error] = std::from_chars(slash + 1, end, range.total);
  if (total_error != std::errc() || rest != end) return std::nullopt;
  return range;
}

}  // namespace

struct Download::Arrival {
  std::size_t index = 0;
  std::int64_t first = 0;    // the first byte asked for
  std::int64_t end = 0;      // behind the last
  std::int64_t at = 0;       // where the next byte belongs
  std::int64_t ignored = 0;  // bytes of an answer that is no content
  bool begun = false;        // the head has been judged
  bool content = false;
  bool gave_whole = false;  // though a part was asked for
  bool new_blocks = false;
};

Status Download::add(const HubFile& file) {
  NIBBLE_ASSIGN(PartialBlob blob, PartialBlob::open(options_.blobs, file));
  queue_.add(blob.done());
  std::int64_t done = 0;
  for (std::int64_t i = 0; i < blob.blocks(); ++i) {
    if (blob.done()[static_cast<std::size_t>(i)] != 0)
      done += std::min(PartialBlob::kBlock, file.size - i * PartialBlob::kBlock);
  }
  done_ += done;
  targets_.push_back(
      std::unique_ptr<Target>(new Target{.file = file, .blob = std::move(blob), .mutex = {}, .direct = {}}));
  return {};
}

std::int64_t Download::missing() const {
  std::int64_t total = 0;
  for (const auto& target : targets_) total += target->file.size;
  return total - done_;
}

bool Download::stopped() const { return stop_ || (settings_.cancelled && settings_.cancelled()); }

void Download::fail(Status status) {
  const std::lock_guard lock(mutex_);
  if (outcome_.ok()) outcome_ = std::move(status);
  stop_ = true;
  changed_.notify_all();
}

Status Download::run(const Watch& watch) {
  DownloadProgress progress;
  for (const auto& target : targets_) progress.total += target->file.size;
  incomplete_ = static_cast<int>(targets_.size());
  // Whole already: of no bytes, or left by a run that was killed at its very end.
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const std::vector<char>& done = targets_[i]->blob.done();
    if (std::find(done.begin(), done.end(), 0) == done.end()) NIBBLE_RETURN_IF_ERROR(complete(i));
  }
  std::vector<std::thread> threads;
  const auto wanted = static_cast<std::size_t>(std::clamp<std::int64_t>(
      (missing() + PartialBlob::kBlock - 1) / PartialBlob::kBlock, 1, options_.connections));
  // Runs are long, so that few requests are needed, and there are several for each connection.
  queue_.set_run_blocks(std::clamp<std::int64_t>(missing() / PartialBlob::kBlock / (4 * options_.connections),
                                                 1, kMostRunBlocks));
  {
    const std::lock_guard lock(mutex_);
    working_ = static_cast<int>(wanted);
  }
  for (std::size_t i = 0; i < wanted; ++i)
    threads.emplace_back([this, i] {
      name_this_thread("pull");
      work(static_cast<unsigned>(i));
      const std::lock_guard lock(mutex_);
      --working_;
      changed_.notify_all();
    });
  for (bool ended = false; !ended;) {
    {
      std::unique_lock lock(mutex_);
      ended = changed_.wait_for(lock, kWatchInterval, [this] { return working_ == 0; });
    }
    progress.done = done_;
    progress.fresh = fresh_;
    if (watch) watch(progress);
  }
  for (std::thread& thread : threads) thread.join();
  if (!outcome_.ok()) return outcome_;
  if (stopped()) return {StatusCode::cancelled, "interrupted; the same command goes on from here"};
  NIBBLE_CHECK(incomplete_ == 0);
  return {};
}

void Download::work(unsigned number) {
  HttpFetcher fetcher(settings_);
  int failures = 0;
  for (;;) {
    if (stopped()) return;
    const std::optional<BlockRun> run = queue_.take();
    if (!run) {
      // What others fetch may come back, and so may a file whose content turned out to be wrong.
      std::unique_lock lock(mutex_);
      if (incomplete_ == 0) return;
      changed_.wait_for(lock, kWatchInterval);
      continue;
    }
    if (!fetch(fetcher, *run, failures, number)) return;
  }
}

FetchOutcome Download::request(HttpFetcher& fetcher, const BlockRun& run, Arrival& arrival) {
  Target& target = *targets_[run.file];
  arrival.index = run.file;
  arrival.first = arrival.at = run.first_block * PartialBlob::kBlock + run.skip;
  arrival.end = std::min((run.first_block + run.blocks) * PartialBlob::kBlock, target.file.size);
  FetchRequest request{.url = content_url(access_, options_.name.name, options_.commit, target.file.path),
                       .bearer = access_.token};
  {
    const std::lock_guard lock(target.mutex);
    if (target.direct) request = {.url = *target.direct};
  }
  const bool whole = arrival.first == 0 && arrival.end == target.file.size;
  if (!whole)
    request.range = {static_cast<std::uint64_t>(arrival.first), static_cast<std::uint64_t>(arrival.end - 1)};
  FetchOutcome outcome = fetcher.get(
      request, [&](const HttpAnswer& head, std::string_view bytes) { return take(head, bytes, arrival); });
  const int status = outcome.answer.status();
  const bool elsewhere = !outcome.url.same_origin(access_.endpoint);
  const std::lock_guard lock(target.mutex);
  if (outcome.failure.status.ok() && elsewhere &&
      (status == 401 || status == 403 || status == 404 || status == 410)) {
    // An address with a signature is good for a time; the hub gives another one.
    target.direct.reset();
    outcome.failure.status = io_error("the address that the hub gave for " + quote(target.file.path) +
                                      " is not good (" + std::to_string(status) + ")");
  } else if ((status == 200 || status == 206) && elsewhere) {
    target.direct = outcome.url;
  }
  return outcome;
}

Status Download::begin_body(const HttpAnswer& head, Arrival& arrival) const {
  const Target& target = *targets_[arrival.index];
  const std::string name = quote(target.file.path);
  arrival.begun = true;
  if (head.status() != 200 && head.status() != 206) return {};
  const std::string_view coding = head.header("content-encoding").value_or("identity");
  if (coding != "identity" && !coding.empty())
    return io_error("the hub sends " + name +
                    " compressed, which nobody asked for; is there a proxy between?");
  if (head.status() == 200) {
    if (const auto length = head.header("content-length");
        length && *length != std::to_string(target.file.size))
      return io_error(name + " has " + std::string(*length) + " bytes, and by the hub's listing " +
                      std::to_string(target.file.size) + "; try again, or ask whoever runs the mirror");
    arrival.gave_whole = arrival.first != 0 || arrival.end != target.file.size;
    arrival.content = !arrival.gave_whole;
    return {};
  }
  const std::optional<ContentRange> range = read_content_range(head.header("content-range").value_or(""));
  if (!range || range->first != arrival.first || range->last >= arrival.end || range->last < range->first)
    return io_error("the hub sends another part of " + name +
                    " than was asked for; is there a proxy between?");
  if (range->total != target.file.size)
    return io_error(name + " has " + std::to_string(range->total) + " bytes, and by the hub's listing " +
                    std::to_string(target.file.size) + "; try again, or ask whoever runs the mirror");
  arrival.content = true;
  return {};
}

Status Download::take(const HttpAnswer& head, std::string_view bytes, Arrival& arrival) {
  if (stopped()) return {StatusCode::cancelled, "interrupted; the same command goes on from here"};
  if (!arrival.begun) NIBBLE_RETURN_IF_ERROR(begin_body(head, arrival));
  if (!arrival.content) {
    arrival.ignored += static_cast<std::int64_t>(bytes.size());
    // The rest of what is of no use is not waited for.
    if (arrival.gave_whole || arrival.ignored > kMostIgnored) return io_error("an answer that is no content");
    return {};
  }
  Target& target = *targets_[arrival.index];
  if (static_cast<std::int64_t>(bytes.size()) > arrival.end - arrival.at)
    return io_error("the hub sends more of " + quote(target.file.path) + " than its listing says");
  while (!bytes.empty()) {
    const std::int64_t block = arrival.at / PartialBlob::kBlock;
    const std::int64_t block_end = std::min((block + 1) * PartialBlob::kBlock, target.file.size);
    const std::string_view part = bytes.substr(0, static_cast<std::size_t>(block_end - arrival.at));
    // Of a file that is given whole alone, some blocks may be there already; it may be complete before its
    // last.
    const bool had = queue_.is_done(arrival.index, block);
    if (!had) NIBBLE_RETURN_IF_ERROR(target.blob.write(arrival.at, part));
    arrival.at += static_cast<std::int64_t>(part.size());
    bytes.remove_prefix(part.size());
    if (had || arrival.at != block_end) continue;
    NIBBLE_RETURN_IF_ERROR(target.blob.mark(block));
    const std::int64_t size = block_end - block * PartialBlob::kBlock;
    done_ += size;
    fresh_ += size;
    arrival.new_blocks = true;
    if (queue_.finish(arrival.index, block)) NIBBLE_RETURN_IF_ERROR(complete(arrival.index));
  }
  return {};
}

// Of an answer that is whole and brought nothing.
NetFailure Download::judge_fruitless(const HttpAnswer& head, Arrival& arrival) const {
  const HubFile& file = targets_[arrival.index]->file;
  const int status = head.status();
  if (status == 416)
    return {.status = io_error(quote(file.path) +
                               " is shorter than the hub's listing says; try again, or ask whoever "
                               "runs the mirror"),
            .may_pass = false};
  if (status >= 400)
    return {.status = explain_refusal(head, access_, options_.name), .may_pass = is_passing(status)};
  // Without a body nobody has looked at the head.
  if (!arrival.begun) {
    if (Status bad = begin_body(head, arrival); !bad.ok())
      return {.status = std::move(bad), .may_pass = false};
  }
  return {.status = io_error("the answer to " + quote(file.path) + " ends before its end")};
}

// False ends the thread.
bool Download::fetch(HttpFetcher& fetcher, const BlockRun& run, int& failures, unsigned number) {
  Arrival arrival;
  const FetchOutcome outcome = request(fetcher, run, arrival);
  if (arrival.gave_whole) queue_.needs_whole(run.file);
  queue_.give_back(run, arrival.at / PartialBlob::kBlock, arrival.at % PartialBlob::kBlock);
  if (arrival.gave_whole) return true;  // the next take() gives the whole file
  const bool answered = outcome.failure.status.ok();
  const int status = outcome.answer.status();
  if (answered && arrival.content && arrival.at == arrival.end) {
    failures = 0;
    return true;
  }
  // What came of a block stays for the next try, but not where the server begins at the first byte each time.
  const bool progress = arrival.new_blocks || (status == 206 && arrival.at - arrival.first >= kSomeProgress);
  failures = progress ? 1 : failures + 1;
  const NetFailure failure = answered ? judge_fruitless(outcome.answer, arrival) : outcome.failure;
  const Status& refused = failure.status;
  if (refused.code() == StatusCode::cancelled || stopped()) return false;
  const auto asked = answered ? asked_wait(outcome.answer.header("retry-after"),
                                           outcome.answer.header("ratelimit"), std::time(nullptr))
                              : std::nullopt;
  const std::optional<milliseconds> wait =
      failure.may_pass ? next_wait(failures, asked, (number * 37 % 100) / 100.0) : std::nullopt;
  if (!wait) {
    const std::string name = quote(targets_[run.file]->file.path);
    fail(refused.message().find(name) == std::string::npos ? refused.with_context(name) : refused);
    return false;
  }
  if (note_ && (failures > 1 || asked))
    note_((answered && status >= 400 ? "the hub answers " + std::to_string(status) : refused.message()) +
          "; trying again in " + std::to_string((wait->count() + 999) / 1000) + " s");
  const Download* const self = this;
  return sleep_for(*wait, [self] { return self->stopped(); });
}

// Every byte of the file is there: they are held against its name.
Status Download::complete(std::size_t index) {
  Target& target = *targets_[index];
  NIBBLE_ASSIGN(const bool right, target.blob.is_right());
  if (right) {
    NIBBLE_RETURN_IF_ERROR(target.blob.finish());
    const std::lock_guard lock(mutex_);
    --incomplete_;
    changed_.notify_all();
    return {};
  }
  if (!target.blob.resumed())
    return io_error("the bytes that came as " + quote(target.file.path) +
                    " are not those of the hub's listing (" + (target.file.large ? "sha256 " : "git blob ") +
                    target.file.blob +
                    "); try again, and ask whoever runs the mirror or proxy between if it stays so");
  if (note_)
    note_("what was left of " + quote(target.file.path) +
          " from an earlier run is damaged; fetching it anew");
  done_ -= target.file.size;
  NIBBLE_RETURN_IF_ERROR(target.blob.restart());
  queue_.reset(index);
  return {};
}

}  // namespace nibble
