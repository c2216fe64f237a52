#include "common/channel/channel.h"

namespace smartgen::channel {

std::string_view LaneName(Lane lane) {
  switch (lane) {
    case Lane::kOnDemand:
      return "ondemand";
    case Lane::kMetadata:
      return "metadata";
    case Lane::kProactive:
      return "proactive";
    case Lane::kSpeculative:
      return "speculative";
  }
  return "unknown";
}

}  // namespace smartgen::channel
