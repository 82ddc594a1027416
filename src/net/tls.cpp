#include "net/tls.h"

#include <openssl/ssl.h>
#include <sys/stat.h>

#include <cstdlib>

#include "base/quote.h"

namespace nibble {
namespace {

// Where Debian, Fedora, openSUSE, RHEL, Alpine and NixOS keep them.
constexpr const char* kBundles[] = {"/etc/ssl/certs/ca-certificates.crt",
                                    "/etc/pki/tls/certs/ca-bundle.crt",
                                    "/etc/ssl/ca-bundle.pem",
                                    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
                                    "/etc/pki/tls/cacert.pem",
                                    "/etc/ssl/cert.pem",
                                    "/etc/ssl/certs/ca-bundle.crt"};

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

bool is_file(const char* path) {
  struct stat facts {};
  return stat(path, &facts) == 0 && S_ISREG(facts.st_mode);
}

Status not_loaded(const char* name, const std::string& value) {
  return invalid_argument(
      "the variable " + std::string(name) + " names " + quote(value) +
      ", which holds no certificates as PEM; give the bundle of a certificate authority, or unset it");
}

}  // namespace

TrustEnvironment TrustEnvironment::of_this_process() {
  return {.ssl_cert_file = variable("SSL_CERT_FILE"), .ssl_cert_dir = variable("SSL_CERT_DIR")};
}

Result<TlsTrust> TlsTrust::load(const TrustEnvironment& environment) {
  std::shared_ptr<ssl_ctx_st> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  if (context == nullptr) return internal_error("TLS could not be set up");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  static constexpr unsigned char http11[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  SSL_CTX_set_alpn_protos(context.get(), http11, sizeof http11);
  if (environment.ssl_cert_file &&
      SSL_CTX_load_verify_file(context.get(), environment.ssl_cert_file->c_str()) != 1)
    return not_loaded("SSL_CERT_FILE", *environment.ssl_cert_file);
  if (environment.ssl_cert_dir &&
      SSL_CTX_load_verify_dir(context.get(), environment.ssl_cert_dir->c_str()) != 1)
    return not_loaded("SSL_CERT_DIR", *environment.ssl_cert_dir);
  if (environment.ssl_cert_file) return TlsTrust(std::move(context), *environment.ssl_cert_file);
  if (environment.ssl_cert_dir) return TlsTrust(std::move(context), *environment.ssl_cert_dir);
  for (const char* bundle : kBundles) {
    if (is_file(bundle) && SSL_CTX_load_verify_file(context.get(), bundle) == 1)
      return TlsTrust(std::move(context), bundle);
  }
  return not_found(
      "this system has no bundle of certificate authorities, so no https server can be trusted; install "
      "ca-certificates, or name a bundle in SSL_CERT_FILE");
}

}  // namespace nibble
