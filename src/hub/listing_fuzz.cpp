// A hub's answers: whatever the bytes, nothing crashes, and what is accepted stays below a folder.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "hub/listing.h"
#include "hub/retry.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nibble;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const Result<std::vector<HubFile>> files = parse_tree(text);
  if (files.ok()) {
    for (const HubFile& file : *files) {
      NIBBLE_CHECK(is_plain_path(file.path) && file.path.front() != '/');
      NIBBLE_CHECK(file.size >= 0 && file.blob.size() == (file.large ? 64u : 40u));
      NIBBLE_CHECK(file.blob.find_first_not_of("0123456789abcdef") == std::string::npos);
    }
    const Result<std::vector<HubFile>> chosen = choose_files(*files, "a/b");
    if (chosen.ok()) static_cast<void>(keep_indexed(*chosen, text).ok());
  }
  const Result<std::string> commit = parse_revision(text);
  if (commit.ok()) NIBBLE_CHECK(commit->size() == 40);
  static_cast<void>(files_of_index(text).ok());
  static_cast<void>(next_page(text));
  static_cast<void>(asked_wait(text, text, 0));
  static_cast<void>(asked_wait({}, text, 0));
  return 0;
}
