// Whom a client of TLS believes: the certificates of the system, or those that a variable names.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"

struct ssl_ctx_st;

namespace nibble {

struct TrustEnvironment {
  std::optional<std::string> ssl_cert_file;  // SSL_CERT_FILE: certificates of authorities, as PEM
  std::optional<std::string> ssl_cert_dir;   // SSL_CERT_DIR: a folder of them, by hash

  static TrustEnvironment of_this_process();
};

// Any number of connections share one.
class TlsTrust {
 public:
  // With neither variable set, the first of the bundles that Linux distributions have.
  static Result<TlsTrust> load(const TrustEnvironment& environment);

  ssl_ctx_st* context() const { return context_.get(); }
  const std::string& source() const { return source_; }  // what was loaded, for errors

 private:
  TlsTrust(std::shared_ptr<ssl_ctx_st> context, std::string source)
      : context_(std::move(context)), source_(std::move(source)) {}

  std::shared_ptr<ssl_ctx_st> context_;
  std::string source_;
};

}  // namespace nibble
