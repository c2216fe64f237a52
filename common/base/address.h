// Addresses as users write them: HOST:PORT, an IPv6 address in brackets.
#pragma once

#include <string_view>

namespace smartgen::base {

// What is to be resolved of it: no port, no brackets. Of what is no address: what stands before its
// last colon, or nothing.
inline std::string_view HostOf(std::string_view address) {
  const size_t colon = address.rfind(':');
  std::string_view host = address.substr(0, colon == std::string_view::npos ? 0 : colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return host;
}

}  // namespace smartgen::base
