#include "tools/bench/quality_report.h"

#include <algorithm>

#include "tools/bench/machine.h"
#include "tools/bench/quality_summary.h"
#include "tools/bench/report.h"
#include "tools/bench/svg.h"
#include "tools/bench/table.h"

namespace smartgen::tools::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string LengthName(int length) { return length == 0 ? "all" : fmt::format("{}", length); }

std::string SelectorName(const Variant& variant) {
  return variant.dense() ? "dense" : variant.selector;
}

// "+0.012"; the reference itself has none.
std::string Signed(const Variant& variant, double value) {
  return variant.dense() ? "" : fmt::format("{:+.4f}", value);
}

std::string Percent(double share) { return fmt::format("{:g} %", 100 * share); }
std::string Share(int count, int of) { return of == 0 ? "" : fmt::format("{}/{}", count, of); }

// 0 (all lengths) last, and only where there are several.
std::vector<int> Groups(const QualityMeasurements& measurements) {
  std::vector<int> groups = LengthsOf(measurements);
  if (groups.size() > 1) groups.push_back(0);
  return groups;
}

std::string TextTable(const QualityMeasurements& m) {
  Table table;
  table.AddColumn("tokens");
  table.AddColumn("selector", /*left=*/true);
  for (const char* name : {"budget", "texts", "NLL", "− dense", "± s.e.", "worst text",
                           "likeliest token as dense", "failed"}) {
    table.AddColumn(name);
  }
  for (const int length : Groups(m)) {
    for (size_t v = 0; v < m.variants.size(); ++v) {
      const QualitySummary s = SummarizeQuality(m, v, length);
      const NllSummary& n = s.texts;
      if (n.items == 0) continue;
      table.AddRow(
          {LengthName(length), SelectorName(s.variant),
           s.variant.dense() ? "" : Percent(s.variant.budget), fmt::format("{}", n.items),
           fmt::format("{:.4f}", n.nll), Signed(s.variant, n.difference),
           s.variant.dense() || n.items < 2 ? "" : fmt::format("{:.4f}", n.standard_error),
           Signed(s.variant, n.worst),
           s.variant.dense() || !n.same_first ? "" : fmt::format("{:.1f} %", 100 * *n.same_first),
           s.failed > 0 ? fmt::format("{}", s.failed) : ""});
    }
  }
  return table.Render();
}

std::string NeedleTable(const QualityMeasurements& m) {
  Table table;
  table.AddColumn("tokens");
  table.AddColumn("selector", /*left=*/true);
  for (const char* name : {"budget", "found", "of those that dense found", "answer as dense",
                           "NLL of the answer", "− dense", "worst needle"}) {
    table.AddColumn(name);
  }
  for (const int length : Groups(m)) {
    for (size_t v = 0; v < m.variants.size(); ++v) {
      const QualitySummary s = SummarizeQuality(m, v, length);
      const NllSummary& n = s.needles;
      if (n.items == 0) continue;
      const bool dense = s.variant.dense();
      table.AddRow({LengthName(length), SelectorName(s.variant),
                    dense ? "" : Percent(s.variant.budget), Share(s.found, n.items),
                    dense ? "" : Share(s.found_of_dense_found, s.dense_found),
                    dense ? "" : Share(s.same_answer, n.items), fmt::format("{:.4f}", n.nll),
                    Signed(s.variant, n.difference), Signed(s.variant, n.worst)});
    }
  }
  return table.Render();
}

bool HasItems(const QualityMeasurements& m, bool needles) {
  return std::any_of(m.results.begin(), m.results.end(), [&](const QualityResult& result) {
    return result.item.needle.has_value() == needles;
  });
}

std::string PrefixNote(const QualitySetting& setting) {
  return setting.prefix_cache
             ? "each prompt was prefilled once, for the reference, and its KV taken from the "
               "prefill side's prefix cache for the others; InfiniGen then chooses its channels "
               "from the queries of the prompt's last page alone"
             : "each request's prompt was prefilled anew";
}

std::string Subtitle(const QualitySetting& setting, const QualityMeasurements& m) {
  return fmt::format("{}, {}; {}", m.model.name, m.model.compute, DescribeParameters(setting));
}

Json ToJson(const NllSummary& n, bool dense) {
  if (n.items == 0) return nullptr;
  Json json = {{"items", n.items}, {"nll", n.nll}};
  if (dense) return json;
  json["nll_minus_dense"] = n.difference;
  json["standard_error"] = n.standard_error;
  json["worst_item"] = n.worst;
  json["largest_absolute"] = n.largest;
  if (n.same_first) json["likeliest_as_dense"] = *n.same_first;
  return json;
}

Json ToJson(const QualitySummary& s) {
  Json json;
  if (s.length > 0) json["prompt_tokens"] = s.length;
  json["selector"] = SelectorName(s.variant);
  json["budget"] = s.variant.budget;
  json["failed"] = s.failed;
  json["texts"] = ToJson(s.texts, s.variant.dense());
  json["needles"] = ToJson(s.needles, s.variant.dense());
  if (s.needles.items == 0) return json;
  json["needles"]["found"] = s.found;
  if (s.variant.dense()) return json;
  json["needles"]["dense_found"] = s.dense_found;
  json["needles"]["found_of_dense_found"] = s.found_of_dense_found;
  json["needles"]["answer_as_dense"] = s.same_answer;
  return json;
}

Json ToJson(const QualityResult& result, const std::vector<Variant>& variants) {
  const QualityItem& item = result.item;
  Json json = {{"kind", item.needle ? "needle" : "text"},
               {"text", item.text},
               {"prompt_tokens", item.length}};
  if (item.needle) {
    json["depth"] = item.depth;
    json["position"] = item.position;
    json["sentence"] = item.needle->Sentence();
    json["number"] = item.needle->number;
  }
  json["scores"] = Json::array();
  for (size_t v = 0; v < variants.size(); ++v) {
    const Score& score = result.scores[v];
    Json one = {{"selector", SelectorName(variants[v])}, {"budget", variants[v].budget}};
    if (const auto nll = NllOf(score)) {
      one["nll"] = *nll;
      one["logprobs"] = score.logprobs;
      one["likeliest"] = score.likeliest;
      one["cached_tokens"] = score.cached_tokens;
      if (item.needle) {
        one["answer"] = score.answer;
        one["found"] = Answers(*item.needle, score.answer);
      }
    } else {
      one["error"] = score.status.ToString();
    }
    json["scores"].push_back(std::move(one));
  }
  return json;
}

// Selectors in the order of the variants, each once.
std::vector<std::string> Selectors(const QualityMeasurements& m) {
  std::vector<std::string> names;
  for (const Variant& variant : m.variants) {
    const bool known = std::find(names.begin(), names.end(), variant.selector) != names.end();
    if (!variant.dense() && !known) names.push_back(variant.selector);
  }
  return names;
}

// A line a selector over the budgets.
template <typename Figure>
std::string ByBudget(const QualityMeasurements& m, int length, PlotText text, Figure figure) {
  LinePlot plot;
  plot.text = std::move(text);
  plot.log_x = true;
  for (const std::string& name : Selectors(m)) {
    LinePlot::Series series;
    series.name = name;
    for (size_t v = 1; v < m.variants.size(); ++v) {
      if (m.variants[v].selector != name) continue;
      const auto value = figure(SummarizeQuality(m, v, length));
      if (value) series.points.emplace_back(100 * m.variants[v].budget, *value);
    }
    std::sort(series.points.begin(), series.points.end());
    plot.series.push_back(std::move(series));
  }
  LinePlot::Series dense{.name = "dense", .points = {}, .dashed = true};
  const auto reference = figure(SummarizeQuality(m, 0, length));
  for (size_t v = 1; reference && v < m.variants.size(); ++v) {
    dense.points.emplace_back(100 * m.variants[v].budget, *reference);
  }
  std::sort(dense.points.begin(), dense.points.end());
  plot.series.push_back(std::move(dense));
  return ToSvg(plot);
}

}  // namespace

std::string DescribeParameters(const QualitySetting& setting) {
  return fmt::format(
      "{}, {}",
      setting.has_hash_weights ? "HATA: trained hash weights"
                               : "HATA: random hash weights (none trained)",
      setting.has_skew ? "InfiniGen: trained skew" : "InfiniGen: no skew (channels as they are)");
}

std::string RenderQuality(const QualitySetting& setting, const QualityMeasurements& m) {
  std::string text = fmt::format(
      "{}, {}; full attention (mode full) against a selection (mode smartgen)\nSelector "
      "parameters: {}.\nPrefix cache: {}.\n",
      m.model.name, m.model.compute, DescribeParameters(setting), PrefixNote(setting));
  if (m.results.size() < m.planned) {
    text +=
        fmt::format("BROKEN OFF after {} of {} texts and needles.\n", m.results.size(), m.planned);
  }
  if (const auto error = IdentityError(m)) {
    text += fmt::format(
        "Identity: with a budget of 100 % no item's NLL differs from dense's by more than "
        "{:.2g}.\n",
        *error);
  }
  if (HasItems(m, false)) {
    text += fmt::format(
        "\nNLL (nats a token) of the {} tokens that follow each prompt, but for the first:\n\n{}",
        setting.continuation_tokens, TextTable(m));
  }
  if (HasItems(m, true)) {
    text += "\nNeedles: the number found by greedy answers, and the right answer's NLL:\n\n" +
            NeedleTable(m);
  }
  return text;
}

Json QualityJson(const QualitySetting& setting, const QualityMeasurements& m) {
  Json json;
  json["benchmark"] = "quality";
  json["command"] = setting.command;
  json["date"] = setting.date;
  json["version"] = m.model.version;
  json["machine"] = DescribeMachine();
  json["model"] = bench::ToJson(m.model);
  json["texts"] = setting.texts;
  json["continuation_tokens"] = setting.continuation_tokens;
  json["scored"] =
      "forced tokens from the second on; the first is the prefill side's, with full attention";
  json["seed"] = setting.seed;
  json["selector_parameters"] = {{"file", setting.selector_parameters},
                                 {"skew", setting.has_skew},
                                 {"hash_weights", setting.has_hash_weights},
                                 {"in_words", DescribeParameters(setting)}};
  json["prefill_prefix_cache"] = {{"on", setting.prefix_cache}, {"note", PrefixNote(setting)}};
  json["threads"] = {{"prefilld", setting.prefill_threads}, {"decoded", setting.decode_threads}};
  json["overrides"] = setting.overrides;
  json["seconds"] = m.seconds;
  json["complete"] = m.results.size() == m.planned;
  if (const auto error = IdentityError(m)) json["identity_error"] = *error;
  json["cells"] = Json::array();
  for (const int length : Groups(m)) {
    for (size_t v = 0; v < m.variants.size(); ++v) {
      json["cells"].push_back(ToJson(SummarizeQuality(m, v, length)));
    }
  }
  json["items"] = Json::array();
  for (const QualityResult& result : m.results) {
    json["items"].push_back(ToJson(result, m.variants));
  }
  return json;
}

std::vector<std::pair<std::string, std::string>> QualityPlots(const QualitySetting& setting,
                                                              const QualityMeasurements& m) {
  std::vector<std::pair<std::string, std::string>> files;
  const std::string subtitle = Subtitle(setting, m);
  for (const int length : Groups(m)) {
    const std::string of =
        length == 0 ? "prompts of all lengths" : fmt::format("prompts of {} tokens", length);
    const std::string name = LengthName(length);
    if (HasItems(m, false)) {
      files.emplace_back(
          fmt::format("quality_nll_{}.svg", name),
          ByBudget(m, length,
                   {"Continuation NLL against full attention, " + of, subtitle,
                    "selection budget, % of the context", "nats a token above dense"},
                   [](const QualitySummary& s) -> std::optional<double> {
                     if (s.texts.items == 0) return std::nullopt;
                     return s.texts.difference;
                   }));
    }
    if (HasItems(m, true)) {
      files.emplace_back(
          fmt::format("quality_needles_{}.svg", name),
          ByBudget(m, length,
                   {"Needles found, " + of, subtitle, "selection budget, % of the context",
                    "% of greedy answers with the number"},
                   [](const QualitySummary& s) -> std::optional<double> {
                     if (s.needles.items == 0) return std::nullopt;
                     return 100.0 * s.found / s.needles.items;
                   }));
    }
  }
  return files;
}

}  // namespace smartgen::tools::bench
