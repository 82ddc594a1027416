#include "server/page/page.h"

#include <string>

namespace nibble::page {
namespace {

using namespace std::string_view_literals;

struct File {
  std::string_view name;
  std::string_view hash;
  std::string_view contents;
};

constexpr File files[] = {
#include <page_files.inc>  // cmake/nibble_embed.cmake writes it
};

// Scripts, styles and requests of this origin alone, none of them inline; no frames around or inside; and no
// string of the page's own scripts may become markup.
constexpr std::string_view policy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'";

std::string_view content_type(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "text/javascript; charset=utf-8";
}

const File* find_file(std::string_view path) {
  if (!path.starts_with('/')) return nullptr;
  const std::string_view name = path == "/" ? "index.html"sv : path.substr(1);
  for (const File& file : files)
    if (file.name == name) return &file;
  return nullptr;
}

}  // namespace

bool is_file(std::string_view path) { return find_file(path) != nullptr; }

std::optional<http::Response> file_answer(std::string_view path, std::string_view known_tags) {
  const File* const file = find_file(path);
  if (file == nullptr) return {};
  const std::string tag = "\"" + std::string(file->hash.substr(0, 32)) + "\"";
  http::Response response{.content_type = std::string(content_type(file->name)),
                          .fields = {{"ETag", tag},
                                     {"Cache-Control", "no-cache"},  // asked for again, by its tag
                                     {"Content-Security-Policy", std::string(policy)},
                                     {"X-Content-Type-Options", "nosniff"},
                                     {"X-Frame-Options", "DENY"},
                                     {"Referrer-Policy", "no-referrer"},
                                     {"Cross-Origin-Opener-Policy", "same-origin"},
                                     {"Cross-Origin-Resource-Policy", "same-origin"}}};
  if (known_tags.find(tag) != std::string_view::npos) {
    response.status = 304;
  } else {
    response.body = file->contents;
  }
  return response;
}

}  // namespace nibble::page
