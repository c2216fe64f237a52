// Renders chat messages into a prompt with the real Jinja2, embedded behind this interface, in the
// environment that transformers uses (ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks,
// loopcontrols, its own tojson, raise_exception, strftime_now).
//
// Thread-safe; renders take turns (Python's lock).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace smartgen::chat {

struct RenderRequest {
  nlohmann::ordered_json messages;  // array of {"role":, "content":, ...}
  nlohmann::ordered_json tools;     // array, or null
  bool add_generation_prompt = true;
  nlohmann::ordered_json extra;  // further template variables (object), or null
};

// A rendered prompt, cut into template text (special tokens count) and text that came from the
// request (they do not).
struct Rendered {
  struct Piece {
    std::string text;
    bool from_user = false;
  };
  std::vector<Piece> pieces;
  std::string Text() const;
};

struct TemplateOptions {
  std::string source;     // Jinja2; empty: a built-in ChatML-like default is used (logged)
  std::string bos_token;  // template variables, as transformers passes them
  std::string eos_token;
  // Strings that must not become control tokens when they come from the request.
  std::vector<std::string> special_texts;
  // The clock for strftime_now, seconds since 1970 in local time; empty: the system's.
  std::function<int64_t()> now;
};

class ChatTemplate {
 public:
  // InvalidArgument with Jinja's message and line if the template does not compile.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(TemplateOptions options);
  virtual ~ChatTemplate() = default;

  // InvalidArgument carries the template's own message (raise_exception, undefined variables, ...).
  // Bounded: output over 16 MiB or a render over 5 s is ResourceExhausted / DeadlineExceeded.
  // Null-valued keys of messages are dropped first, and content given as a list of text parts is
  // flattened to a string where the template does not handle lists (C.f. T5 in the tests).
  virtual absl::StatusOr<Rendered> Render(const RenderRequest& request) const = 0;
};

// Template text with special tokens parsed, request text without (`trust_user_text`: transformers'
// behaviour, with). Adds no BOS where the template already emitted one; adds one where the
// tokenizer asks for it and the template did not (only if `add_bos`).
std::vector<tokenizer::TokenId> EncodeRendered(const tokenizer::Tokenizer& tokenizer,
                                               const Rendered& rendered, bool trust_user_text,
                                               bool add_bos);

}  // namespace smartgen::chat
