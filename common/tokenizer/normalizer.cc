#include "common/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "common/base/log.h"

namespace smartgen::tokenizer {
namespace {

int OptionsOf(Normalization form) {
  switch (form) {
    case Normalization::kNfc:
      return UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    case Normalization::kNfd:
      return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    case Normalization::kNfkc:
      return UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    case Normalization::kNfkd:
      return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  }
  return 0;
}

}  // namespace

std::string_view Normalize(std::string_view text, std::span<const Normalization> forms,
                           std::string& storage) {
  const bool ascii = std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
  if (ascii) return text;  // unchanged by every form
  for (const Normalization form : forms) {
    utf8proc_uint8_t* mapped = nullptr;
    const utf8proc_ssize_t size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                     static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                     static_cast<utf8proc_option_t>(OptionsOf(form)));
    std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
    if (size < 0) {
      SMARTGEN_LOG(error, "tokenizer", "normalising {} bytes: {}", text.size(),
                   utf8proc_errmsg(size));
      continue;
    }
    std::string next(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
    storage = std::move(next);
    text = storage;
  }
  return text;
}

}  // namespace smartgen::tokenizer
