#include "tools/bench/summary.h"

#include <algorithm>
#include <set>

namespace smartgen::tools::bench {
namespace {

// Medians position by position; as long as the longest.
std::vector<double> MediansByPosition(const std::vector<std::vector<double>>& lists) {
  size_t longest = 0;
  for (const auto& list : lists) longest = std::max(longest, list.size());
  std::vector<double> medians;
  for (size_t i = 0; i < longest; ++i) {
    std::vector<double> values;
    for (const auto& list : lists) {
      if (i < list.size()) values.push_back(list[i]);
    }
    medians.push_back(Percentile(std::move(values), 0.5));
  }
  return medians;
}

void Compare(const Run& run, Summary& summary) {
  if (!run.first_difference) return;
  ++summary.compared;
  if (*run.first_difference < 0) {
    ++summary.equal;
  } else if (summary.first_difference < 0 || *run.first_difference < summary.first_difference) {
    summary.first_difference = *run.first_difference;
  }
}

std::string ServedOtherwise(const Cell& cell, const Generation& generation) {
  const auto text = [&](const char* key) {
    const auto found = generation.texts.find(key);
    return found == generation.texts.end() ? std::string() : found->second;
  };
  const std::string mode = text("mode");
  const std::string reason = text("fallback_reason");
  if (cell.what.mode == "auto" && reason.empty()) return mode.substr(mode.rfind('_') + 1);
  if (mode == "mode_" + cell.what.mode && reason.empty()) return "";
  return reason.empty() ? mode : fmt::format("{} ({})", mode, reason);
}

// What the prefill side's counters say it sent; where they were not looked at, what the decode side
// says it got.
void TakeBytes(const Cell& cell, Summary& summary) {
  constexpr std::string_view kReceived = "path_bytes.";
  for (const auto& [path, bytes] :
       ByLabel(cell.prefill, "smartgen_transfer_bytes_total", "path", "direction=\"sent\"")) {
    summary.bytes[path] = bytes / summary.runs;
  }
  for (const auto& [name, bytes] : summary.numbers) {
    if (cell.prefill.empty() && name.starts_with(kReceived)) {
      summary.bytes[name.substr(kReceived.size())] = bytes;
    }
  }
  for (const auto& [path, bytes] : summary.bytes) summary.bytes_total += bytes;
}

double NumberOf(const Generation& generation, const std::string& name) {
  const auto found = generation.numbers.find(name);
  return found == generation.numbers.end() ? 0 : found->second;
}

// The sum of a counter over its labels, a request; none if it has not grown.
std::optional<double> PerRequest(const Counters& counters, std::string_view name, int requests) {
  double sum = 0;
  for (const auto& [label, value] : ByLabel(counters, name, "")) sum += value;
  if (sum == 0) return std::nullopt;
  return sum / requests;
}

// Times between tokens on either side of the moment when all KV was here.
struct Sides {
  std::vector<double> before, after, all_local;
  double selected = 0;
  double remote = 0;
  double handover_steps = 0;
  double wait_steps = 0;

  void Take(const Generation& generation, const TokenTimes& times) {
    selected += NumberOf(generation, "selected_entries");
    remote += NumberOf(generation, "remote_entries");
    handover_steps += NumberOf(generation, "handover_steps");
    wait_steps += NumberOf(generation, "wait_steps");
    const double all = NumberOf(generation, "all_local_seconds");
    if (all <= 0) return;
    all_local.push_back(all);
    for (size_t i = 0; i < times.between.size(); ++i) {
      // between[i] is from token i + 1 to token i + 2, counted from 0.
      if (generation.token_seconds[i + 2] <= all) before.push_back(times.between[i]);
      if (generation.token_seconds[i + 1] >= all) after.push_back(times.between[i]);
    }
  }

  void Conclude(int served, Summary& summary) const {
    const auto mean = [](const std::vector<double>& values) {
      return values.empty() ? std::nullopt : std::optional(Mean(values));
    };
    if (selected > 0) summary.ondemand_ratio = remote / selected;
    if (!all_local.empty()) summary.all_local_seconds = Percentile(all_local, 0.5);
    summary.tbt_before = mean(before);
    summary.tbt_after = mean(after);
    if (handover_steps > 0) summary.handover_steps = handover_steps / served;
    if (wait_steps > 0) summary.wait_steps = wait_steps / served;
  }
};

}  // namespace

Summary Summarize(const Cell& cell) {
  Summary summary;
  std::vector<double> ttft, gap, e2e, last, between;
  std::vector<std::vector<double>> steps, ctl;
  std::map<std::string, std::vector<double>> numbers;
  std::set<std::string> served;
  Sides sides;
  for (const Run& run : cell.runs) {
    ++summary.runs;
    const Generation& generation = run.generation;
    if (!generation.status.ok()) {
      if (++summary.failed == 1) summary.first_error = base::MessageOf(generation.status);
      continue;
    }
    TokenTimes times = TimesOf(generation.token_seconds);
    ttft.push_back(times.ttft);
    if (times.gap) gap.push_back(*times.gap);
    if (times.e2e) e2e.push_back(*times.e2e);
    last.push_back(generation.token_seconds.back());
    between.insert(between.end(), times.between.begin(), times.between.end());
    sides.Take(generation, times);
    steps.push_back(std::move(times.steps));
    ctl.push_back(generation.token_seconds);
    for (const auto& [name, value] : generation.numbers) numbers[name].push_back(value);
    if (std::string other = ServedOtherwise(cell, generation); !other.empty()) served.insert(other);
    const auto cached = generation.numbers.find("cached_tokens");
    if (cell.what.prefix_hit == 0 && cached != generation.numbers.end()) {
      summary.unwanted_cached_tokens = std::max(summary.unwanted_cached_tokens, cached->second);
    }
    Compare(run, summary);
  }
  summary.ttft = SpreadOf(ttft);
  summary.gap = SpreadOf(gap);
  summary.e2e = SpreadOf(e2e);
  summary.last = SpreadOf(last);
  summary.tbt_mean = Mean(between);
  summary.tbt_p99 = Percentile(between, 0.99);
  summary.steps = MediansByPosition(steps);
  summary.ctl = MediansByPosition(ctl);
  for (auto& [name, values] : numbers) summary.numbers[name] = Percentile(std::move(values), 0.5);
  summary.served_otherwise = fmt::format("{}", fmt::join(served, ", "));
  if (summary.runs == 0) return summary;
  TakeBytes(cell, summary);
  if (summary.failed < summary.runs) sides.Conclude(summary.runs - summary.failed, summary);
  summary.handover_seconds =
      PerRequest(cell.prefill, "smartgen_handover_seconds_total", summary.runs);
  summary.stall_seconds =
      PerRequest(cell.decode, "smartgen_decode_stall_seconds_sum", summary.runs);
  return summary;
}

std::optional<double> Speedup(const Summary& reference, const Summary& summary) {
  if (!reference.e2e || !summary.e2e || summary.e2e->median <= 0) return std::nullopt;
  return reference.e2e->median / summary.e2e->median;
}

const Cell* FindReference(const std::vector<Cell>& cells, const Cell& like,
                          const std::string& mode) {
  const auto found = std::find_if(cells.begin(), cells.end(), [&](const Cell& cell) {
    return cell.calibration.length == like.calibration.length && cell.link.wish == like.link.wish &&
           cell.what.mode == mode && cell.what.batch == like.what.batch &&
           cell.what.prefix_hit == like.what.prefix_hit;
  });
  return found == cells.end() ? nullptr : &*found;
}

}  // namespace smartgen::tools::bench
