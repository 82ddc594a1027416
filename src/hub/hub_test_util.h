// For tests: a folder of its own, with a cache in it to scan and damage.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/check.h"

namespace nibble {

class HubTestFolder {
 public:
  HubTestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "nibble_hub_XXXXXX").native();
    NIBBLE_CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  HubTestFolder(const HubTestFolder&) = delete;
  HubTestFolder& operator=(const HubTestFolder&) = delete;
  ~HubTestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
  }
  void link(const std::string& name, const std::string& target) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::filesystem::create_symlink(target, path_ / name);
  }
  std::string read(const std::string& name) const {
    std::ifstream file(path_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  bool has(const std::string& name) const { return std::filesystem::exists(path_ / name); }

 private:
  std::filesystem::path path_;
};

}  // namespace nibble
