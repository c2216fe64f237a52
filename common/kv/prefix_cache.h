// Finished pages by content: a hash chain over whole pages of token ids, salted, pointing to
// shared, reference-counted pages. Least recently used leaves go first. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/mutex.h"
#include "common/kv/sequence.h"

namespace smartgen::kv {

class PrefixCache {
 public:
  struct Options {
    bool enabled = true;
    // Model fingerprint, KV dtype and compute type: pages of one never serve another.
    std::string salt;
    // At most this share of the pool's pages is in the cache, those that sequences hold as well
    // included. [0, 1]
    double max_share = 1.0;
  };
  struct Stats {
    int64_t pages = 0;
    int64_t hit_tokens = 0;
    int64_t lookup_tokens = 0;
    int64_t evicted_pages = 0;
  };

  // The pool must outlive the cache. Registers itself as the pool's evictor.
  PrefixCache(KvPool* pool, Options options);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Pages of the longest cached prefix of whole pages that covers at most `max_tokens` tokens, one
  // reference each for the caller (give them to a KvSequence, which releases them). Token ids are
  // compared, not only hashes.
  std::vector<PageId> Lookup(std::span<const int32_t> tokens, int64_t max_tokens);
  // Offers the sequence's whole pages of tokens [0, tokens.size()). A page enters only when local
  // in all layers and when all pages before it are in. Pages already known stay as they are (the
  // cached one wins).
  void Insert(std::span<const int32_t> tokens, const KvSequence& sequence);
  // Drops the page and all that follow it in the chain (a page found damaged).
  void Remove(PageId page);
  // Frees up to `pages` pages that only the cache holds; returns how many.
  int64_t Evict(int64_t pages);
  void Clear();
  Stats stats() const;

 private:
  struct Entry;
  // Oldest first; the key breaks ties.
  struct Older {
    bool operator()(const Entry* a, const Entry* b) const;
  };
  using PageTokens = std::span<const int32_t, kPageTokens>;

  uint64_t KeyOf(const Entry* parent, PageTokens tokens) const;
  Entry* Find(const Entry* parent, PageTokens tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Touch(Entry* deepest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null if the page must not enter; the chain ends there.
  Entry* Add(Entry* parent, PageTokens tokens, PageId page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The entry must be a leaf. Its page loses the cache's reference.
  void Drop(Entry* leaf) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t EvictLocked(int64_t pages, const Entry* keep) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  KvPool* const pool_;
  const Options options_;
  const uint64_t salt_hash_;
  const int64_t max_pages_;
  mutable base::Mutex mutex_;                 // taken before the pool's
  uint64_t now_ ABSL_GUARDED_BY(mutex_) = 0;  // counts lookups and inserts
  std::unordered_map<uint64_t, std::unique_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<PageId, Entry*> by_page_ ABSL_GUARDED_BY(mutex_);
  // Entries without children, the only ones that may go. There are about as many as conversations,
  // so that stepping over those in use is cheap however many pages the cache holds.
  std::set<Entry*, Older> leaves_ ABSL_GUARDED_BY(mutex_);
  Stats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace smartgen::kv
