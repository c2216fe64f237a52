// The selectors of one model, made when first asked for. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/selector/selector.h"

namespace smartgen::selector {

class SelectorSet {
 public:
  // `defaults` holds for all of them but kind and budget.
  SelectorSet(kv::KvLayout layout, std::vector<int> query_heads, Parameters parameters,
              Options defaults);

  // selector::DigestOf the parameters.
  uint64_t parameters_digest() const { return digest_; }

  // InvalidArgument for a kind that is not known or a budget outside (0, 1].
  absl::StatusOr<std::shared_ptr<const KvSelector>> Get(std::string_view kind, double budget_share);

 private:
  // Budgets come from requests; more than these at once are made anew each time.
  static constexpr size_t kMaxKept = 64;

  const kv::KvLayout layout_;
  const std::vector<int> query_heads_;
  const Parameters parameters_;
  const uint64_t digest_;
  const Options defaults_;
  base::Mutex mutex_;
  std::map<std::pair<Kind, double>, std::shared_ptr<const KvSelector>> kept_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace smartgen::selector
