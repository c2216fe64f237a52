#include "tests/gateway/tiny_model.h"

#include <cstdlib>

#include "common/base/log.h"
#include "common/model/model.h"

namespace smartgen::gateway::testing {
namespace {

std::string Utf8(int code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

// GPT-2's printable stand-in for each byte.
std::vector<std::string> ByteTokens() {
  std::vector<std::string> tokens(256);
  int next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    tokens[static_cast<size_t>(b)] = Utf8(printable ? b : next++);
  }
  return tokens;
}

class TinyTemplate final : public chat::ChatTemplate {
 public:
  absl::StatusOr<chat::Rendered> Render(const chat::RenderRequest& request) const override {
    chat::Rendered out;
    for (const auto& message : request.messages) {
      const std::string role = message["role"];
      std::string content;
      const auto it = message.find("content");
      if (it != message.end() && it->is_string()) content = *it;
      if (it != message.end() && it->is_array()) {
        for (const auto& part : *it) content += part["text"].get<std::string>();
      }
      if (role == "system" && content == "refuse") {
        return base::InvalidArgument("System role not supported");
      }
      out.pieces.push_back({"<|im_start|>" + role + "\n", false});
      out.pieces.push_back({content, true});
      out.pieces.push_back({"<|eos|>\n", false});
    }
    return out;
  }
};

}  // namespace

std::unique_ptr<const tokenizer::Tokenizer> TinyTokenizer() {
  model::TokenizerData data;
  data.ggml_model = "gpt2";
  data.ggml_pre = "gpt-2";
  data.tokens = ByteTokens();
  data.types.assign(256, 1);
  for (const char* text : {"<|bos|>", "<|eos|>", "<|im_start|>"}) {
    data.tokens.emplace_back(text);
    data.types.push_back(3);
  }
  for (const char* text : {"</", "en", "d>"}) {
    data.tokens.emplace_back(text);
    data.types.push_back(1);
  }
  data.merges = {"< /", "e n", "d >"};
  data.bos_id = kBos;
  data.eos_ids = {kEos};
  auto tokenizer = tokenizer::Tokenizer::Create(data);
  if (!tokenizer.ok()) {
    SMARTGEN_LOG(critical, "test", "tiny tokenizer: {}", base::MessageOf(tokenizer.status()));
    std::abort();
  }
  return std::move(*tokenizer);
}

ServedModel TinyModel(int64_t context_length) {
  ServedModel model;
  model.name = "tiny";
  model.fingerprint = "00000000cafef00d";
  model.context_length = context_length;
  model.created = 1;
  model.tokenizer = TinyTokenizer();
  model.chat_template = std::make_unique<TinyTemplate>();
  return model;
}

std::vector<int32_t> Bytes(const std::string& text) {
  std::vector<int32_t> ids;
  for (const unsigned char c : text) ids.push_back(c);
  return ids;
}

}  // namespace smartgen::gateway::testing
