// A whole GGUF file: container, configuration, tokenizer arrays, weights.
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/model/gguf.h"
#include "tests/fuzz/touch_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto parsed = smartgen::model::ParseGguf(bytes);
  if (!parsed.ok()) return 0;
  for (const auto& [key, value] : parsed->keys) {
    (void)value.AsInteger();
    (void)value.AsReal();
    (void)value.AsString();
    (void)value.AsIntegers();
    (void)value.AsFloats();
    (void)value.AsStrings();
  }
  const auto model = smartgen::model::OpenGguf(bytes, nullptr);
  if (model.ok()) smartgen::fuzz::TouchModel(**model);
  return 0;
}
