#include "common/kv/prefix_cache.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/hash.h"

namespace smartgen::kv {

// The chain is a tree: entries with one parent are siblings in a doubly linked list. An entry's
// last use is never before that of its children, because a use of a child is a use of all before
// it.
struct PrefixCache::Entry {
  uint64_t key = 0;
  std::array<int32_t, kPageTokens> tokens;
  PageId page = 0;
  uint64_t last_used = 0;
  Entry* parent = nullptr;
  Entry* first_child = nullptr;
  Entry* next_sibling = nullptr;
  Entry* previous_sibling = nullptr;
};

bool PrefixCache::Older::operator()(const Entry* a, const Entry* b) const {
  return a->last_used != b->last_used ? a->last_used < b->last_used : a->key < b->key;
}

PrefixCache::PrefixCache(KvPool* pool, Options options)
    : pool_(pool),
      options_(std::move(options)),
      salt_hash_(base::Hash64(std::as_bytes(std::span(options_.salt)))),
      max_pages_(static_cast<int64_t>(std::clamp(options_.max_share, 0.0, 1.0) *
                                      static_cast<double>(pool->total_pages()))) {
  if (options_.enabled) pool_->SetEvictor([this](int64_t pages) { return Evict(pages); });
}

PrefixCache::~PrefixCache() {
  if (options_.enabled) pool_->SetEvictor(nullptr);
  Clear();
}

uint64_t PrefixCache::KeyOf(const Entry* parent, PageTokens tokens) const {
  return base::Hash64(std::as_bytes(tokens), parent == nullptr ? salt_hash_ : parent->key);
}

PrefixCache::Entry* PrefixCache::Find(const Entry* parent, PageTokens tokens) {
  const auto it = entries_.find(KeyOf(parent, tokens));
  if (it == entries_.end()) return nullptr;
  // Equal parents have equal contents up to here, so this compares the whole prefix.
  Entry* entry = it->second.get();
  if (entry->parent != parent) return nullptr;
  return std::equal(tokens.begin(), tokens.end(), entry->tokens.begin()) ? entry : nullptr;
}

void PrefixCache::Touch(Entry* deepest) {
  if (deepest == nullptr) return;
  ++now_;
  // The set is ordered by last_used: out before it changes, in after.
  const bool leaf = deepest->first_child == nullptr;
  if (leaf) leaves_.erase(deepest);
  for (Entry* entry = deepest; entry != nullptr; entry = entry->parent) entry->last_used = now_;
  if (leaf) leaves_.insert(deepest);
}

std::vector<PageId> PrefixCache::Lookup(std::span<const int32_t> tokens, int64_t max_tokens) {
  std::vector<PageId> pages;
  if (!options_.enabled) return pages;
  const int64_t limit = std::min(static_cast<int64_t>(tokens.size()), max_tokens);
  base::MutexLock lock(mutex_);
  Entry* last = nullptr;
  for (int64_t at = 0; at + kPageTokens <= limit; at += kPageTokens) {
    Entry* entry = Find(last, PageTokens(tokens.data() + at, kPageTokens));
    if (entry == nullptr) break;
    pool_->AddRef(entry->page);
    pages.push_back(entry->page);
    last = entry;
  }
  Touch(last);
  stats_.lookup_tokens += static_cast<int64_t>(tokens.size());
  stats_.hit_tokens += static_cast<int64_t>(pages.size()) * kPageTokens;
  return pages;
}

PrefixCache::Entry* PrefixCache::Add(Entry* parent, PageTokens tokens, PageId page) {
  if (by_page_.contains(page)) return nullptr;  // known under other tokens: the offer is wrong
  if (static_cast<int64_t>(entries_.size()) >= max_pages_ && EvictLocked(1, parent) == 0) {
    return nullptr;
  }
  auto entry = std::make_unique<Entry>();
  entry->key = KeyOf(parent, tokens);
  std::copy(tokens.begin(), tokens.end(), entry->tokens.begin());
  entry->page = page;
  entry->parent = parent;
  entry->last_used = now_;
  Entry* raw = entry.get();
  // Another prefix with the same hash stays; this one goes without.
  if (!entries_.try_emplace(raw->key, std::move(entry)).second) return nullptr;
  by_page_[page] = raw;
  pool_->AddRef(page);
  if (parent != nullptr) {
    if (parent->first_child == nullptr) {
      leaves_.erase(parent);
    } else {
      parent->first_child->previous_sibling = raw;
    }
    raw->next_sibling = parent->first_child;
    parent->first_child = raw;
  }
  leaves_.insert(raw);
  return raw;
}

void PrefixCache::Insert(std::span<const int32_t> tokens, const KvSequence& sequence) {
  if (!options_.enabled) return;
  const std::span<const PageId> pages = sequence.pages();
  const int64_t count = std::min(static_cast<int64_t>(tokens.size()) / kPageTokens,
                                 static_cast<int64_t>(pages.size()));
  base::MutexLock lock(mutex_);
  Entry* last = nullptr;
  for (int64_t i = 0; i < count; ++i) {
    const PageTokens page_tokens(tokens.data() + i * kPageTokens, kPageTokens);
    Entry* entry = Find(last, page_tokens);
    if (entry == nullptr) {
      bool local = true;
      for (int layer = 0; local && layer < sequence.layout().num_layers(); ++layer) {
        local = pool_->residency().AllLocal(pages[i], layer, 0, kPageTokens);
      }
      if (local) entry = Add(last, page_tokens, pages[i]);
    }
    if (entry == nullptr) break;
    last = entry;
  }
  Touch(last);
}

void PrefixCache::Drop(Entry* leaf) {
  leaves_.erase(leaf);
  by_page_.erase(leaf->page);
  pool_->Release(leaf->page);
  Entry* parent = leaf->parent;
  if (leaf->next_sibling != nullptr) leaf->next_sibling->previous_sibling = leaf->previous_sibling;
  if (leaf->previous_sibling != nullptr) {
    leaf->previous_sibling->next_sibling = leaf->next_sibling;
  } else if (parent != nullptr) {
    parent->first_child = leaf->next_sibling;
    if (parent->first_child == nullptr) leaves_.insert(parent);
  }
  entries_.erase(leaf->key);
}

void PrefixCache::Remove(PageId page) {
  base::MutexLock lock(mutex_);
  const auto it = by_page_.find(page);
  if (it == by_page_.end()) return;
  Entry* const top = it->second;
  for (Entry* entry = top;;) {
    while (entry->first_child != nullptr) entry = entry->first_child;
    Entry* const parent = entry->parent;
    const bool done = entry == top;
    Drop(entry);
    if (done) return;
    entry = parent;
  }
}

int64_t PrefixCache::Evict(int64_t pages) {
  base::MutexLock lock(mutex_);
  return EvictLocked(pages, nullptr);
}

int64_t PrefixCache::EvictLocked(int64_t pages, const Entry* keep) {
  int64_t freed = 0;
  for (auto it = leaves_.begin(); freed < pages && it != leaves_.end();) {
    Entry* const leaf = *it;
    // A page gains holders only through Lookup, which needs our lock, or from one who holds it: a
    // count of one stays.
    if (leaf == keep || pool_->ref_count(leaf->page) != 1) {
      ++it;
      continue;
    }
    ++it;
    Entry* const parent = leaf->parent;
    Drop(leaf);
    ++freed;
    // The parent may have become a leaf, and may be next in age.
    if (parent != nullptr && parent->first_child == nullptr &&
        (it == leaves_.end() || Older()(parent, *it))) {
      it = leaves_.find(parent);
    }
  }
  stats_.evicted_pages += freed;
  return freed;
}

void PrefixCache::Clear() {
  base::MutexLock lock(mutex_);
  for (const auto& [page, entry] : by_page_) pool_->Release(page);
  leaves_.clear();
  by_page_.clear();
  entries_.clear();
}

PrefixCache::Stats PrefixCache::stats() const {
  base::MutexLock lock(mutex_);
  Stats stats = stats_;
  stats.pages = static_cast<int64_t>(entries_.size());
  return stats;
}

}  // namespace smartgen::kv
