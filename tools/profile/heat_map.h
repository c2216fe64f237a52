// Profiles as pictures: layers from top to bottom, positions from left to right.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/transfer/profile.h"

namespace smartgen::tools::profile {

struct HeatMap {
  std::string title;
  std::string subtitle;
  struct Panel {
    std::string title;
    // One a layer, equally long, values >= 0. An empty row is a layer that is always sent.
    std::vector<std::vector<float>> rows;
  };
  std::vector<Panel> panels;  // one below the other, in one scale of colours
};

// A whole SVG document. Any text is allowed in titles.
std::string ToSvg(const HeatMap& map);

// A row of fewer columns: each the mean of the values that fall into it. Values that are NaN are
// left out; a column of nothing else is 0. REQUIRES: 0 < columns <= row.size().
std::vector<float> Downsample(std::span<const float> row, int columns);

// A profile's rows in 256 columns, those of the layers that are always sent empty.
HeatMap::Panel PanelOf(const std::vector<transfer::Profile::Row>& rows, std::string title);
HeatMap::Panel PanelOf(const transfer::Profile& profile, std::string title);

}  // namespace smartgen::tools::profile
