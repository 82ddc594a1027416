#include "app/pull_model.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "app/amount.h"
#include "app/interrupt.h"
#include "app/progress.h"
#include "app/question.h"
#include "app/version.h"
#include "base/quote.h"
#include "checkpoint/model_config.h"
#include "checkpoint/model_location.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// What a pull needs of this process, kept together: settings point to the trust, options to the settings.
struct PullSetup {
  std::optional<TlsTrust> trust;
  PullOptions options;
};

bool is_loopback_host(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

Result<std::unique_ptr<PullSetup>> set_up(const PullRequest& request, const InterruptGuard& guard,
                                          Console& console) {
  const HubEnvironment environment = HubEnvironment::of_this_process();
  if (environment.hf_hub_offline)
    return invalid_argument("HF_HUB_OFFLINE is set, so nothing is downloaded; unset it to pull " +
                            quote(request.name.text()));
  auto setup = std::make_unique<PullSetup>();
  PullOptions& options = setup->options;
  options.name = request.name;
  options.connections = request.connections;
  options.verify = request.verify;
  NIBBLE_ASSIGN(options.cache, required_hub_cache(environment));
  NIBBLE_ASSIGN(options.access, HubAccess::of_this_process(environment));
  // A hub without encryption may still send its large files from one with.
  Result<TlsTrust> trust = TlsTrust::load(TrustEnvironment::of_this_process());
  if (trust.ok()) {
    setup->trust = std::move(trust).value();
    options.settings.trust = &*setup->trust;
  } else if (options.access.endpoint.secure()) {
    return trust.status();
  }
  options.settings.proxies = ProxyEnvironment::of_this_process();
  options.settings.user_agent = "nibble/" NIBBLE_VERSION;
  options.settings.patience = options.access.patience;
  options.settings.cancelled = [&guard] { return guard.interrupted(); };
  if (!options.access.endpoint.secure() && !options.access.token.empty() &&
      !is_loopback_host(options.access.endpoint.host))
    std::fprintf(console.err, "warning: HF_ENDPOINT is no https address, so the token travels unencrypted\n");
  return setup;
}

// "123 MB/s" over the last seconds, and how long the rest takes at that rate.
class Rate {
 public:
  std::string text(const DownloadProgress& progress) {
    const auto now = std::chrono::steady_clock::now();
    if (!begun_) {
      begun_ = true;
      last_ = now;
      return {};
    }
    const double seconds = std::chrono::duration<double>(now - last_).count();
    if (seconds >= 0.5) {
      const double current = static_cast<double>(progress.fresh - last_fresh_) / seconds;
      // A mean that forgets in about five seconds.
      const double weight = rate_ == 0 ? 1 : 1 - std::exp(-seconds / 5);
      rate_ += weight * (current - rate_);
      last_ = now;
      last_fresh_ = progress.fresh;
    }
    if (rate_ < 1) return {};
    std::string text = "  " + scaled_bytes(static_cast<std::int64_t>(rate_)) + "/s";
    const double left = std::ceil(static_cast<double>(progress.total - progress.done) / rate_);
    if (left < 120) return text + "  " + std::to_string(static_cast<long>(left)) + " s left";
    if (left < 7200) return text + "  " + std::to_string(static_cast<long>(left / 60)) + " min left";
    return text + "  " + std::to_string(static_cast<long>(left / 3600)) + " h left";
  }

 private:
  std::chrono::steady_clock::time_point last_;
  std::int64_t last_fresh_ = 0;
  double rate_ = 0;
  bool begun_ = false;
};

// The model is one that nibble runs, as far as its configuration tells.
Status accept_config(const PullRequest& request, std::string config, std::string generation_config) {
  if (request.any_model) return {};
  const Result<ModelConfig> parsed = parse_model_config(std::move(config), std::move(generation_config));
  if (parsed.ok()) return {};
  return Status(parsed.status().code(), quote(request.name.name) + " is a model that nibble does not run: " +
                                            parsed.status().message() +
                                            "; --any-model pulls it all the same");
}

PullObserver observe(const PullRequest& request, ProgressBar& bar, Rate& rate, Console& console) {
  return {.note =
              [&bar, &console](const std::string& sentence) {
                if (console.err == stderr) {
                  bar.print_above(escape(sentence) + "\n");
                } else {
                  std::fprintf(console.err, "%s\n", escape(sentence).c_str());
                }
              },
          .progress =
              [&bar, &rate](const DownloadProgress& progress) {
                bar.update(static_cast<double>(progress.done), static_cast<double>(progress.total),
                           rate.text(progress));
              },
          .accept =
              [&request](std::string config, std::string generation_config) {
                return accept_config(request, std::move(config), std::move(generation_config));
              }};
}

void print_done(const PullRequest& request, const PullReport& report, Console& console) {
  std::fprintf(console.err, "%s %s (%s, %s fetched now)\n",
               report.fetched > 0 ? "pulled" : "already here:", request.name.text().c_str(),
               scaled_bytes(report.bytes).c_str(), scaled_bytes(report.fetched).c_str());
}

}  // namespace

Result<PullReport> pull_model(const PullRequest& request, Console& console) {
  const InterruptGuard guard;
  NIBBLE_ASSIGN(const std::unique_ptr<PullSetup> setup, set_up(request, guard, console));
  ProgressBar bar("pulling " + request.name.text());
  Rate rate;
  const PullObserver observer = observe(request, bar, rate, console);
  NIBBLE_ASSIGN(const PullPlan plan, plan_pull(setup->options, observer));
  NIBBLE_ASSIGN(PullReport report, pull(setup->options, plan, observer));
  bar.erase();
  print_done(request, report, console);
  return report;
}

Status offer_pull(const std::string& model, Console& console) {
  const std::optional<HubName> name = parse_hub_name(model);
  if (!name || !can_ask(console)) return {};
  const Result<ModelLocation> found = locate_model(model, LocationEnvironment::of_this_process());
  if (found.ok() || found.status().code() != StatusCode::not_found) return {};
  if (HubEnvironment::of_this_process().hf_hub_offline) return {};
  const PullRequest request{.name = *name};
  {
    const InterruptGuard guard;
    NIBBLE_ASSIGN(const std::unique_ptr<PullSetup> setup, set_up(request, guard, console));
    const PullObserver observer{.note = [&console](const std::string& sentence) {
      std::fprintf(console.err, "%s\n", escape(sentence).c_str());
    }};
    NIBBLE_ASSIGN(const PullPlan plan, plan_pull(setup->options, observer));
    std::fprintf(console.err, "%s is not in the Hugging Face cache %s.\n", model.c_str(),
                 quote(setup->options.cache.native()).c_str());
    const bool wanted = ask("Pull it now, " + scaled_bytes(plan.missing) + "?", console);
    if (guard.interrupted()) return {StatusCode::cancelled, "interrupted; nothing was pulled"};
    if (!wanted)
      return not_found("model " + quote(model) + " was not pulled; get it with \"nibble pull " +
                       name->text() + "\"");
  }
  return pull_model(request, console).status();
}

}  // namespace nibble
