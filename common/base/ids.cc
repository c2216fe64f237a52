#include "common/base/ids.h"

#include <spdlog/fmt/fmt.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdlib>

namespace smartgen::base {
namespace {

void Fill(void* out, size_t size) {
  auto* p = static_cast<unsigned char*>(out);
  while (size > 0) {
    const ssize_t n = getrandom(p, size, 0);
    if (n < 0) {
      if (errno == EINTR) continue;
      std::abort();  // no randomness: nothing that is safe can follow
    }
    p += n;
    size -= static_cast<size_t>(n);
  }
}

}  // namespace

std::string TransferId::ToString() const { return fmt::format("{:016x}{:016x}", hi, lo); }

uint64_t RandomUint64() {
  uint64_t v;
  Fill(&v, sizeof(v));
  return v;
}

TransferId NewTransferId() { return {RandomUint64(), RandomUint64()}; }

uint64_t NewIncarnationId() {
  uint64_t v = 0;
  while (v == 0) v = RandomUint64();
  return v;
}

ChannelKey NewChannelKey() {
  ChannelKey key;
  Fill(key.data(), key.size());
  return key;
}

std::string NewRequestId(const char* prefix) {
  return fmt::format("{}{:016x}{:08x}", prefix, RandomUint64(), RandomUint64() & 0xffffffffu);
}

}  // namespace smartgen::base
