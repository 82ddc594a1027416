#include "hub/hub_client.h"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <thread>

#include "base/file.h"
#include "base/quote.h"
#include "hub/retry.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr int kMostPages = 200;
constexpr std::size_t kMostToken = 4096;

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

Status read_token(HubAccess& access, const HubEnvironment& environment) {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    const std::optional<std::string> value = variable(name);
    if (!value || trimmed(*value).empty()) continue;
    access.token = trimmed(*value);
    access.token_source = name;
    break;
  }
  if (access.token.empty()) {
    if (is_true(variable("HF_HUB_DISABLE_IMPLICIT_TOKEN").value_or(""))) return {};
    const std::optional<std::string> given = variable("HF_TOKEN_PATH");
    const std::optional<fs::path> home = hub_home(environment);
    if (!given && !home) return {};
    const fs::path path = given ? fs::path(*given) : *home / "token";
    const Result<std::string> text = read_file(path, kMostToken);
    if (!text.ok()) return {};  // nobody has signed in here
    access.token = trimmed(*text);
    access.token_source = path.native();
  }
  // It goes into a header as it is.
  const bool plain =
      std::all_of(access.token.begin(), access.token.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (!plain || access.token.size() > kMostToken)
    return invalid_argument("what " + access.token_source + " holds is no token; make one at " +
                            access.endpoint.text() + "/settings/tokens");
  return {};
}

Status with_host(const Status& status, const Url& url) { return status.with_context(quote(url.authority())); }

}  // namespace

Result<HubAccess> HubAccess::of_this_process(const HubEnvironment& environment) {
  HubAccess access;
  std::string endpoint = variable("HF_ENDPOINT").value_or("https://huggingface.co");
  while (endpoint.ends_with('/')) endpoint.pop_back();
  Result<Url> url = parse_url(endpoint);
  if (!url.ok()) return url.status().with_context("HF_ENDPOINT");
  if (url->path == "/") url->path.clear();
  if (url->path.find('?') != std::string::npos)
    return invalid_argument("HF_ENDPOINT " + quote(endpoint) + " has a query; give an address without one");
  access.endpoint = *url;
  if (const std::optional<std::string> seconds = variable("HF_HUB_DOWNLOAD_TIMEOUT")) {
    int value = 0;
    const auto [end, error] = std::from_chars(seconds->data(), seconds->data() + seconds->size(), value);
    if (error != std::errc() || end != seconds->data() + seconds->size() || value < 1 || value > 86'400)
      return invalid_argument("HF_HUB_DOWNLOAD_TIMEOUT " + quote(*seconds) +
                              " is no time; give seconds, 1 to 86400");
    access.patience = milliseconds(value * 1000);
  }
  NIBBLE_RETURN_IF_ERROR(read_token(access, environment));
  return access;
}

bool sleep_for(milliseconds time, const std::function<bool()>& cancelled) {
  const auto end = std::chrono::steady_clock::now() + time;
  for (;;) {
    if (cancelled && cancelled()) return false;
    const auto left = std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return true;
    std::this_thread::sleep_for(std::min(left, milliseconds(100)));
  }
}

Url content_url(const HubAccess& access, const std::string& name, const std::string& commit,
                const std::string& path) {
  Url url = access.endpoint;
  url.path += "/" + name + "/resolve/" + commit;
  for (std::size_t at = 0; at < path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    url.path += "/" + percent_encode(std::string_view(path).substr(at, end - at));
    at = end + 1;
  }
  return url;
}

Status explain_refusal(const HttpAnswer& answer, const HubAccess& access, const HubName& name) {
  const int status = answer.status();
  const std::string_view code = answer.header("x-error-code").value_or("");
  const std::string_view message = answer.header("x-error-message").value_or("");
  const std::string hub = access.endpoint.text();
  const std::string page = hub + "/" + name.name;
  const std::string tokens = hub + "/settings/tokens";
  const bool signed_in = !access.token.empty();
  if (code == "RevisionNotFound")
    return not_found(quote(name.name) + " has no revision " + quote(name.revision) + "; " + page +
                     "/tree/main shows those it has");
  if (code == "EntryNotFound")
    return not_found("the hub lists a file of " + quote(name.name) + " that it has not; try again later");
  if (code == "GatedRepo" || (status == 403 && message.find("gated") != message.npos)) {
    if (!signed_in)
      return io_error("access to " + quote(name.name) + " is restricted: sign in and accept its terms at " +
                      page + ", make a token at " + tokens + ", and set HF_TOKEN to it");
    return io_error(
        "the token from " + access.token_source + " may not read " + quote(name.name) +
        ": accept the terms at " + page +
        " with the account that the token belongs to (a request may wait for approval), and let the "
        "token read gated repositories");
  }
  if (status == 401 && signed_in && code != "RepoNotFound")
    return io_error("the hub does not know the token from " + access.token_source + "; make another one at " +
                    tokens + ", or unset it for a public model");
  if (code == "RepoNotFound" || status == 401 || status == 404)
    return not_found("the hub has no model " + quote(name.name) + ", or it is private; check the name at " +
                     page +
                     (signed_in ? ", and what the token from " + access.token_source + " may read"
                                : ", and set HF_TOKEN for a private one"));
  if (status == 403)
    return io_error("the hub refuses " + quote(name.name) +
                    (message.empty() ? "" : " (" + quote(message, 120) + ")") + "; look at " + page +
                    ", and at what your token may read");
  if (status == 429)
    return io_error("the hub asks for a pause: too many requests; try again later" +
                    std::string(signed_in ? "" : ", or set HF_TOKEN, which has a higher limit"));
  if (is_passing(status) || status >= 500)
    return io_error("the hub answers " + std::to_string(status) + " again and again; try again later");
  return io_error("the hub answers " + std::to_string(status) +
                  (message.empty() ? "" : ", " + quote(message, 120)) + "; look at " + page);
}

Result<std::string> HubClient::ask(const HubName& name, const Url& url, std::string& link) {
  for (int failures = 1;; ++failures) {
    std::string body;
    const auto sink = [&body](const HttpAnswer&, std::string_view bytes) -> Status {
      if (body.size() + bytes.size() > kMostListingBytes)
        return io_error("its answer is longer than " + std::to_string(kMostListingBytes >> 20) + " MiB");
      body.append(bytes);
      return {};
    };
    const FetchOutcome outcome = fetcher_.get({.url = url, .bearer = access_.token}, sink);
    const int status = outcome.answer.status();
    if (outcome.failure.status.ok() && status == 200) {
      link = outcome.answer.header("link").value_or("");
      return body;
    }
    const bool connected = outcome.failure.status.ok();
    Status refused = connected ? explain_refusal(outcome.answer, access_, name)
                               : with_host(outcome.failure.status, outcome.url);
    if (refused.code() == StatusCode::cancelled) return refused;
    if (connected ? !is_passing(status) : !outcome.failure.may_pass) return refused;
    const auto asked = connected ? asked_wait(outcome.answer.header("retry-after"),
                                              outcome.answer.header("ratelimit"), std::time(nullptr))
                                 : std::nullopt;
    const std::optional<milliseconds> wait = next_wait(failures, asked, 0.5);
    if (!wait) return refused;
    if (note_)
      note_((connected ? "the hub answers " + std::to_string(status) : refused.message()) +
            "; trying again in " + std::to_string((wait->count() + 999) / 1000) + " s");
    if (!sleep_for(*wait, settings_.cancelled)) return Status(StatusCode::cancelled, "interrupted");
  }
}

Result<std::string> HubClient::commit(const HubName& name) {
  Url url = access_.endpoint;
  url.path += "/api/models/" + name.name + "/revision/" + percent_encode(name.revision);
  std::string link;
  NIBBLE_ASSIGN(std::string body, ask(name, url, link));
  return parse_revision(std::move(body));
}

Result<std::vector<HubFile>> HubClient::files(const HubName& name, const std::string& commit) {
  Url url = access_.endpoint;
  url.path += "/api/models/" + name.name + "/tree/" + commit + "?recursive=true&expand=false";
  std::vector<HubFile> files;
  for (int page = 0; page < kMostPages; ++page) {
    std::string link;
    NIBBLE_ASSIGN(std::string body, ask(name, url, link));
    NIBBLE_ASSIGN(std::vector<HubFile> more, parse_tree(std::move(body)));
    if (files.size() + more.size() > kMostHubFiles)
      return io_error("the hub's listing of " + quote(name.name) + " has too many files");
    files.insert(files.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
    const std::optional<std::string> next = next_page(link);
    if (!next) return files;
    NIBBLE_ASSIGN(Url following, resolve_location(url, *next));
    // The next page is asked for with the token, so it has to be the hub's own.
    if (!following.same_origin(access_.endpoint))
      return io_error("the hub's listing of " + quote(name.name) + " goes on at another host; refused");
    url = std::move(following);
  }
  return io_error("the hub's listing of " + quote(name.name) + " does not end");
}

}  // namespace nibble
