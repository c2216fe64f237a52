// A model folder in one input: four JSON texts and the tensor file, each but the last ended by a
// zero byte.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/model/safetensors.h"
#include "common/model/safetensors_model.h"
#include "tests/fuzz/touch_model.h"

namespace {

std::string TakeText(std::span<const uint8_t>& rest) {
  size_t end = 0;
  while (end < rest.size() && rest[end] != 0) ++end;
  std::string text(reinterpret_cast<const char*>(rest.data()), end);
  rest = rest.subspan(end < rest.size() ? end + 1 : end);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using smartgen::model::FolderTexts;
  std::span<const uint8_t> rest(data, size);
  FolderTexts texts;
  texts.config = TakeText(rest);
  texts.generation_config = TakeText(rest);
  texts.tokenizer_config = TakeText(rest);
  texts.tokenizer = TakeText(rest);
  (void)smartgen::model::ParseShardIndex(texts.generation_config);
  smartgen::model::FileTensors tensors;
  const bool parsed = smartgen::model::ParseSafetensors(std::as_bytes(rest), tensors).ok();
  if (!parsed) tensors.clear();
  const auto model = smartgen::model::BuildSafetensorsModel(texts, std::move(tensors), {});
  if (model.ok()) smartgen::fuzz::TouchModel(**model);
  return 0;
}
