#include "tools/bench/machine.h"
#include "tools/bench/report.h"
#include "tools/bench/summary.h"

namespace smartgen::tools::bench {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const std::optional<Spread>& spread) {
  if (!spread) return nullptr;
  return {{"median", spread->median}, {"min", spread->min}, {"max", spread->max}};
}

Json ToJson(const Calibration& calibration) {
  return {{"kv_bytes", calibration.kv_bytes},
          {"t_p_seconds", calibration.t_p},
          {"t_p_all", calibration.prefill_seconds},
          {"local_prefill_seconds", calibration.local_seconds},
          {"decode_step_seconds", calibration.step_seconds}};
}

Json ToJson(const Link& link, const Setting& setting) {
  Json json;
  json["shaped"] = setting.shaped && (link.wish.ratio > 0 || link.wish.bytes_per_second > 0);
  if (link.wish.ratio > 0) json["wanted_ratio"] = link.wish.ratio;
  json["ratio"] = link.ratio;
  json["bytes_per_second"] = link.bytes_per_second;
  json["t_t_seconds"] = link.transfer_seconds;
  if (link.probed) json["probed_bytes_per_second"] = *link.probed;
  json["dropped_packets"] = link.drops;
  return json;
}

Json ToJson(const Run& run) {
  Json json = {{"prompt", run.prompt}};
  if (!run.generation.status.ok()) json["error"] = run.generation.status.ToString();
  json["token_seconds"] = run.generation.token_seconds;
  json["tokens"] = run.generation.tokens;
  if (run.first_difference) {
    json["tokens_equal"] = *run.first_difference < 0;
    if (*run.first_difference >= 0) json["first_difference"] = *run.first_difference;
  }
  Json stats = Json::object();
  for (const auto& [name, value] : run.generation.texts) stats[name] = value;
  for (const auto& [name, value] : run.generation.numbers) stats[name] = value;
  json["stats"] = std::move(stats);
  return json;
}

Json ToJson(const Summary& summary, const std::optional<double>& speedup) {
  Json json = {{"requests", summary.runs}, {"failed", summary.failed}};
  if (summary.failed > 0) json["first_error"] = summary.first_error;
  json["ttft_seconds"] = ToJson(summary.ttft);
  json["ttst_gap_seconds"] = ToJson(summary.gap);
  json["ttst_e2e_seconds"] = ToJson(summary.e2e);
  json["last_token_seconds"] = ToJson(summary.last);
  if (speedup) json["sooner_than_full"] = *speedup;
  json["tbt_mean_seconds"] = summary.tbt_mean;
  json["tbt_p99_seconds"] = summary.tbt_p99;
  json["steps_seconds"] = summary.steps;
  json["ctl_seconds"] = summary.ctl;
  if (summary.compared > 0) {
    json["tokens_equal"] = summary.equal == summary.compared;
    json["compared"] = summary.compared;
    json["equal"] = summary.equal;
    if (summary.first_difference >= 0) json["first_difference"] = summary.first_difference;
  }
  if (!summary.served_otherwise.empty()) json["served_otherwise"] = summary.served_otherwise;
  json["bytes_sent_by_path"] = summary.bytes;
  json["bytes_sent"] = summary.bytes_total;
  const std::pair<const char*, const std::optional<double>*> optional[] = {
      {"ondemand_ratio", &summary.ondemand_ratio},
      {"all_local_seconds", &summary.all_local_seconds},
      {"tbt_before_all_local_seconds", &summary.tbt_before},
      {"tbt_after_all_local_seconds", &summary.tbt_after},
      {"handover_steps", &summary.handover_steps},
      {"handover_seconds", &summary.handover_seconds},
      {"wait_steps", &summary.wait_steps},
      {"stall_seconds", &summary.stall_seconds}};
  for (const auto& [name, value] : optional) {
    if (*value) json[name] = **value;
  }
  json["stats"] = summary.numbers;
  return json;
}

Json ToJson(const Cell& cell, const Setting& setting, const std::vector<Cell>& cells) {
  const Summary summary = Summarize(cell);
  const Cell* full = FindReference(cells, cell, "full");
  const auto speedup = full == nullptr ? std::nullopt : Speedup(Summarize(*full), summary);
  Json runs = Json::array();
  for (const Run& run : cell.runs) runs.push_back(ToJson(run));
  return {{"prompt_tokens", cell.calibration.length},
          {"calibration", ToJson(cell.calibration)},
          {"link", ToJson(cell.link, setting)},
          {"case", cell.what.name},
          {"mode", cell.what.mode},
          {"options", Json(cell.what.options)},
          {"batch", cell.what.batch},
          {"prefix_hit", cell.what.prefix_hit},
          {"summary", ToJson(summary, speedup)},
          {"metrics_growth", {{"decoded", cell.decode}, {"prefilld", cell.prefill}}},
          {"runs", std::move(runs)}};
}

}  // namespace

Json ToJson(const ModelFacts& model) {
  return {{"name", model.name},
          {"fingerprint", model.fingerprint},
          {"compute", model.compute},
          {"context_length", model.context_length},
          {"layers", model.layout.num_layers()},
          {"kv_dtype", kv::DTypeName(model.layout.dtype)},
          {"kv_bytes_per_token", model.layout.TokenBytes()}};
}

Json ToJson(const Setting& setting, const Measurements& measurements) {
  Json json;
  json["benchmark"] = setting.benchmark;
  json["command"] = setting.command;
  json["date"] = setting.date;
  json["version"] = measurements.model.version;
  json["machine"] = DescribeMachine();
  json["link"] = setting.link;
  json["shaped"] = setting.shaped;
  json["model"] = ToJson(measurements.model);
  json["texts"] = setting.texts;
  json["prompts"] = setting.prompts;
  json["tokens"] = setting.tokens;
  json["prefill_instances"] = setting.prefills;
  json["threads"] = {{"prefilld", setting.prefill_threads}, {"decoded", setting.decode_threads}};
  json["overrides"] = setting.overrides;
  json["cells"] = Json::array();
  for (const Cell& cell : measurements.cells) {
    json["cells"].push_back(ToJson(cell, setting, measurements.cells));
  }
  return json;
}

}  // namespace smartgen::tools::bench
