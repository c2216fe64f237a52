#include "common/selector/selector_set.h"

#include "common/selector/parameters.h"

namespace smartgen::selector {

SelectorSet::SelectorSet(kv::KvLayout layout, std::vector<int> query_heads, Parameters parameters,
                         Options defaults)
    : layout_(std::move(layout)),
      query_heads_(std::move(query_heads)),
      parameters_(std::move(parameters)),
      digest_(DigestOf(parameters_)),
      defaults_(defaults) {}

absl::StatusOr<std::shared_ptr<const KvSelector>> SelectorSet::Get(std::string_view kind,
                                                                   double budget_share) {
  Options options = defaults_;
  ASSIGN_OR_RETURN(options.kind, ParseKind(kind));
  options.budget_share = budget_share;
  base::MutexLock lock(mutex_);
  const auto it = kept_.find({options.kind, budget_share});
  if (it != kept_.end()) return it->second;
  ASSIGN_OR_RETURN(std::shared_ptr<const KvSelector> made,
                   KvSelector::Create(options, layout_, query_heads_, parameters_));
  if (kept_.size() < kMaxKept) kept_.emplace(std::pair(options.kind, budget_share), made);
  return made;
}

}  // namespace smartgen::selector
