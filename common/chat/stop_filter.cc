#include "common/chat/stop_filter.h"

#include <algorithm>
#include <utility>

namespace smartgen::chat {
namespace {

struct Look {
  const std::string* match = nullptr;  // the longest stop string that stands here
  bool undecided = false;              // a longer one could still turn out to
};

Look LookAt(std::string_view text, const std::vector<std::string>& stops) {
  Look look;
  size_t longest_open = 0;
  for (const std::string& stop : stops) {
    if (text.starts_with(stop)) {
      if (look.match == nullptr || stop.size() > look.match->size()) look.match = &stop;
    } else if (std::string_view(stop).starts_with(text)) {
      longest_open = std::max(longest_open, stop.size());
    }
  }
  look.undecided = longest_open > 0;
  return look;
}

}  // namespace

StopFilter::StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopFilter::Push(std::string_view text) {
  if (stopped_) return {};
  held_.append(text);
  return Take(/*final=*/false);
}

std::string StopFilter::Flush() {
  if (stopped_) return {};
  return Take(/*final=*/true);
}

std::string StopFilter::Take(bool final) {
  std::string out;
  for (size_t pos = 0; pos < held_.size(); ++pos) {
    const Look look = LookAt(std::string_view(held_).substr(pos), stops_);
    if (look.undecided && !final) {
      out = held_.substr(0, pos);
      held_.erase(0, pos);
      return out;
    }
    if (look.match != nullptr) {
      stopped_ = true;
      matched_ = *look.match;
      out = held_.substr(0, pos);
      held_.clear();
      return out;
    }
  }
  std::swap(out, held_);
  return out;
}

}  // namespace smartgen::chat
