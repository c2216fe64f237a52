// A model small enough to profile in a test: the golden arch_llama with its layers doubled, so that
// some are not always dense, and a tokeniser of one token a byte.
#pragma once

#include <string>

namespace smartgen::tools::profile {

// A safetensors folder below `folder`, which exists; the path. Aborts the test if it cannot be
// written.
std::string MakeTinyModel(const std::string& folder);

}  // namespace smartgen::tools::profile
