// A configuration file of any bytes must be read or refused, never crash.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/config/schema.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace smartgen::config;  // NOLINT: a fuzz target is one function
  std::string text = "a";
  std::string choice = "x";
  std::vector<std::string> list;
  bool flag = false;
  int number = 0;
  int64_t bytes = 0;
  double real = 0;
  smartgen::base::Duration time{1};
  const auto schema = Describe([&](Binder& b) {
    b.Field("text", &text, "");
    b.Field("list", &list, "");
    b.Field("flag", &flag, "");
    b.Section("s", [&](Binder& s) {
      s.Field("number", &number, "");
      s.Bytes("bytes", &bytes, "");
      s.Field("real", &real, "");
      s.Time("time", &time, "");
      s.Choice("choice", &choice, {"x", "y"}, "");
    });
  });
  const std::string input(reinterpret_cast<const char*>(data), size);
  if (!ApplyYaml(*schema, input, "f.yaml").ok()) return 0;
  // What was read must come back as it is through --print-config.
  const std::string printed = PrintConfig(*schema, "fuzz");
  if (!ApplyYaml(*schema, printed, "printed.yaml").ok()) __builtin_trap();
  if (PrintConfig(*schema, "fuzz") != printed) __builtin_trap();
  return 0;
}
