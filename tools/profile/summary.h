// What a profile says, in a few numbers a layer.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/transfer/profile.h"

namespace smartgen::tools::profile {

struct LayerSummary {
  int layer = 0;
  // Share of the layer's importance that lies in the first and last 5 % of the blocks, and between.
  double first = 0;
  double last = 0;
  double middle = 0;
  // Share of the layer's importance that its best 20 % and 50 % of the blocks hold.
  double top20 = 0;
  double top50 = 0;
  // Mean importance of a block: how much of the layer a step reads.
  double mean = 0;
};

// Of the layers that are not always sent. All shares are 0 in a layer without importance.
std::vector<LayerSummary> Summarise(const transfer::Profile& profile);
// The share of all importance that the best `share` of all these layers' blocks hold together.
double Coverage(const transfer::Profile& profile, double share);

// Markdown: a row a layer, and one of all.
std::string SummaryTable(const transfer::Profile& profile);
// Lines "model: ..." and so on.
std::string OriginText(const transfer::Profile& profile);

}  // namespace smartgen::tools::profile
