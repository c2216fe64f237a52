// Unicode normalisation forms, by utf8proc's tables.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/tokenizer/vocabulary.h"

namespace smartgen::tokenizer {

// `text` (valid UTF-8) normalised; points into `text` where nothing changes, else into `storage`.
std::string_view Normalize(std::string_view text, std::span<const Normalization> forms,
                           std::string& storage);

}  // namespace smartgen::tokenizer
