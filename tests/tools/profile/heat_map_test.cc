#include "tools/profile/heat_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <cmath>
#include <sstream>

namespace smartgen::tools::profile {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(HeatMapTest, IsWellFormedWhateverTheTitlesSay) {
  HeatMap map{.title = "a < b & \"c\" >\n", .subtitle = "</svg>"};
  map.panels.push_back({"<panel>", {{}, {0.0f, 0.5f, 1.0f}, {1.0f, 0.0f, 0.0f}}});
  map.panels.push_back({"of nothing but what is always sent", {{}, {}}});
  std::istringstream in(ToSvg(map));
  boost::property_tree::ptree tree;
  ASSERT_NO_THROW(boost::property_tree::read_xml(in, tree)) << in.str();
  EXPECT_EQ(tree.get<std::string>("svg.<xmlattr>.xmlns"), "http://www.w3.org/2000/svg");
}

TEST(HeatMapTest, WithoutPanelsItIsStillADocument) {
  std::istringstream in(ToSvg({.title = "nothing"}));
  boost::property_tree::ptree tree;
  ASSERT_NO_THROW(boost::property_tree::read_xml(in, tree));
}

TEST(HeatMapTest, MoreIsDarker) {
  HeatMap map;
  map.panels.push_back({"", {{0.0f, 1.0f}}});
  const std::string svg = ToSvg(map);
  // The lightest and the deepest colour of the scale; each one cell of 3 by 9.
  EXPECT_THAT(svg, HasSubstr("<path fill=\"#f7fbff\" d=\"M62 80h3v9h-3z\"/>"));
  EXPECT_THAT(svg, HasSubstr("<path fill=\"#03132b\" d=\"M65 80h3v9h-3z\"/>"));
}

TEST(DownsampleTest, AColumnIsTheMeanOfWhatItHolds) {
  const std::vector<float> row = {1, 3, NAN, 5, NAN, NAN};
  EXPECT_THAT(Downsample(row, 3), ElementsAre(2.0f, 5.0f, 0.0f));
}

TEST(PanelTest, LayersThatAreAlwaysSentAreEmpty) {
  const HeatMap::Panel panel = PanelOf(transfer::Profile::Prior(5), "prior");
  ASSERT_EQ(panel.rows.size(), 5u);
  EXPECT_TRUE(panel.rows[0].empty());
  EXPECT_TRUE(panel.rows[1].empty());
  EXPECT_EQ(panel.rows[2].size(), 256u);
}

}  // namespace
}  // namespace smartgen::tools::profile
