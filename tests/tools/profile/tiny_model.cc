#include "tests/tools/profile/tiny_model.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

namespace smartgen::tools::profile {
namespace {

using nlohmann::json;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) {
    std::cerr << "cannot read " << path << "\n";
    std::abort();
  }
  return text.str();
}

// Layers 2 and 3 are layers 0 and 1 again.
std::string DoubleLayers(const std::string& file) {
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof(size));
  json header = json::parse(file.substr(sizeof(size), size));
  std::vector<std::pair<std::string, json>> more;
  for (const auto& [name, tensor] : header.items()) {
    for (int layer = 0; layer < 2; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      if (name.rfind(prefix, 0) != 0) continue;
      more.emplace_back(
          "model.layers." + std::to_string(layer + 2) + "." + name.substr(prefix.size()), tensor);
    }
  }
  std::string data = file.substr(sizeof(size) + size);
  const std::string old_data = data;
  for (auto& [name, tensor] : more) {
    const auto begin = tensor["data_offsets"][0].get<uint64_t>();
    const auto end = tensor["data_offsets"][1].get<uint64_t>();
    tensor["data_offsets"] = {data.size(), data.size() + (end - begin)};
    data += old_data.substr(begin, end - begin);
    header[name] = tensor;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text + data;
}

std::string Utf8(int code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

std::string ByteTokenizer() {
  json vocabulary;
  int next = 256;  // GPT-2's stand-ins for bytes that are not printed
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    vocabulary[Utf8(printable ? b : next++)] = b;
  }
  const json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return json{{"version", "1.0"},
              {"pre_tokenizer", level},
              {"decoder", level},
              {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}}
      .dump();
}

}  // namespace

std::string MakeTinyModel(const std::string& folder) {
  const std::string golden = std::string(SMARTGEN_TEST_DATA) + "/arch_llama/";
  const std::string out = folder + "/tiny_model";
  std::filesystem::create_directories(out);
  json config = json::parse(ReadFile(golden + "config.json"));
  config["num_hidden_layers"] = 4;
  std::ofstream(out + "/config.json") << config.dump();
  std::ofstream(out + "/tokenizer.json") << ByteTokenizer();
  std::ofstream(out + "/model.safetensors", std::ios::binary)
      << DoubleLayers(ReadFile(golden + "model.safetensors"));
  return out;
}

}  // namespace smartgen::tools::profile
