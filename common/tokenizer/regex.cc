#include "common/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "common/base/log.h"
#include "common/tokenizer/utf8.h"

namespace smartgen::tokenizer {
namespace {

constexpr size_t kMaxPattern = 16 << 10;
// Only patterns that recurse need more than the 32 KiB of machine stack that the JIT uses by
// itself.
constexpr size_t kJitStackStart = 64 << 10;
constexpr size_t kJitStackMax = 16 << 20;
constexpr uint32_t kHeapLimitKib = 256 << 10;
constexpr uint32_t kMatchLimit = 10'000'000;

std::string TranslateSpaces(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    out.push_back(pattern[i]);
    if (pattern[i] != '\\' || i + 1 == pattern.size()) continue;
    const char next = pattern[++i];
    if (next == 's') {
      out.append("p{White_Space}");
    } else if (next == 'S') {
      out.append("P{White_Space}");
    } else {
      out.push_back(next);
    }
  }
  return out;
}

std::string Pcre2Message(int code) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

absl::StatusOr<std::unique_ptr<Regex>> Regex::Create(std::string_view pattern) {
  if (pattern.size() > kMaxPattern) {
    return base::InvalidArgument("regex: {} bytes long, want at most {}", pattern.size(),
                                 kMaxPattern);
  }
  const std::string translated = TranslateSpaces(pattern);
  // Oniguruma's ^ and $ are those of lines.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto regex = std::unique_ptr<Regex>(new Regex());
  regex->code_ = std::make_unique<Code>();
  regex->code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                     translated.size(), options, &error, &offset, context.get());
  if (regex->code_->code == nullptr) {
    return base::InvalidArgument("regex '{}': {} at offset {} (\\s and \\S count as 14 more)",
                                 pattern, Pcre2Message(error), offset);
  }
  // Where the JIT cannot be had (no such processor, no executable memory) PCRE2 interprets.
  pcre2_jit_compile(regex->code_->code, PCRE2_JIT_COMPLETE);
  return regex;
}

Regex::~Regex() = default;

struct Regex::Matches::State {
  const pcre2_code* code = nullptr;
  std::string_view text;
  size_t pos = 0;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;

  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }

  int Match(size_t at) {
    const auto run = [&] {
      return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                         PCRE2_NO_UTF_CHECK, data, context);
    };
    int rc = run();
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && stack == nullptr) {
      stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
      if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
      rc = run();
    }
    return rc;
  }
};

Regex::Matches::Matches(const Regex& regex, std::string_view text)
    : state_(std::make_unique<State>()) {
  state_->code = regex.code_->code;
  state_->data = pcre2_match_data_create(1, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  if (state_->data == nullptr || state_->context == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(state_->context, kMatchLimit);
  pcre2_set_heap_limit(state_->context, kHeapLimitKib);
  Reset(text);
}

Regex::Matches::~Matches() = default;

void Regex::Matches::Reset(std::string_view text) {
  // PCRE2 wants a pointer even for no text.
  state_->text = text.data() == nullptr ? std::string_view("") : text;
  state_->pos = 0;
}

bool Regex::Matches::Next(size_t& begin, size_t& end) {
  State& s = *state_;
  while (s.pos < s.text.size()) {
    const int rc = s.Match(s.pos);
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc < 0) {
      SMARTGEN_LOG(warn, "tokenizer", "regex gave up on {} bytes at offset {}: {}", s.text.size(),
                   s.pos, Pcre2Message(rc));
      return false;
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(s.data);
    if (range[0] >= s.pos && range[1] > range[0]) {
      begin = range[0];
      end = range[1];
      s.pos = end;
      return true;
    }
    // An empty match splits nothing; go on at the character after it.
    const size_t at = std::max<size_t>(range[1], s.pos);
    if (at >= s.text.size()) return false;
    s.pos = at + NextUtf8(s.text.substr(at)).length;
  }
  return false;
}

}  // namespace smartgen::tokenizer
