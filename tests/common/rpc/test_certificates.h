// A certificate authority and certificates that it signs, made on the spot.
#pragma once

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

#include "tests/fakes/temp_folder.h"

namespace smartgen::rpc {

class TestCertificates {
 public:
  TestCertificates() {
    ca_key_.reset(EVP_EC_gen("P-256"));
    ca_.reset(Make(ca_key_.get(), "test authority", nullptr, nullptr));
    Write("ca", ca_.get(), ca_key_.get());
    Issue("server");
    Issue("client");
  }

  // Files name.pem and name.key, for localhost and 127.0.0.1.
  void Issue(const std::string& name) {
    const Key key(EVP_EC_gen("P-256"));
    const Certificate certificate(Make(key.get(), name, ca_.get(), ca_key_.get()));
    Write(name, certificate.get(), key.get());
  }
  std::string Pem(const std::string& name) const { return dir_ + "/" + name + ".pem"; }
  std::string KeyFile(const std::string& name) const { return dir_ + "/" + name + ".key"; }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  static void Extend(X509* certificate, int nid, const char* value) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value);
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }

  static X509* Make(EVP_PKEY* key, const std::string& name, X509* issuer, EVP_PKEY* issuer_key) {
    X509* certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1 + static_cast<long>(name.size()));
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 24 * 3600);
    X509_set_pubkey(certificate, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(issuer ? issuer : certificate));
    Extend(certificate, NID_basic_constraints, issuer ? "CA:FALSE" : "critical,CA:TRUE");
    Extend(certificate, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
    X509_sign(certificate, issuer_key ? issuer_key : key, EVP_sha256());
    return certificate;
  }

  void Write(const std::string& name, X509* certificate, EVP_PKEY* key) const {
    FILE* file = fopen(Pem(name).c_str(), "w");
    PEM_write_X509(file, certificate);
    fclose(file);
    file = fopen(KeyFile(name).c_str(), "w");
    PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
    fclose(file);
  }

  fakes::TempFolder folder_;
  std::string dir_ = folder_.path();
  Key ca_key_;
  Certificate ca_;
};

}  // namespace smartgen::rpc
