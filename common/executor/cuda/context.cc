#include "common/executor/cuda/context.h"

#include <thread>

namespace smartgen::executor::cuda {
namespace {

// Far above what any chunk takes: a device that does not finish in this time does not finish.
constexpr base::Duration kFinishDeadline = std::chrono::minutes(1);
// Whoever waits for a step looks without a pause for so long, then now and then.
constexpr base::Duration kSpin = std::chrono::microseconds(200);
constexpr std::chrono::microseconds kPause(20);
constexpr size_t kChunkBytes = 1 << 20;
constexpr size_t kAlignment = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<Context>> Context::Create(std::shared_ptr<device::Device> device) {
  auto context = std::unique_ptr<Context>(new Context(std::move(device)));
  RETURN_IF_ERROR(context->device_->MakeCurrent());
  ASSIGN_OR_RETURN(context->computed_, context->device_->CreateEvent());
  ASSIGN_OR_RETURN(context->done_, context->device_->CreateEvent());
  ASSIGN_OR_RETURN(context->compute_, context->device_->CreateStream());
  ASSIGN_OR_RETURN(context->copies_, context->device_->CreateStream());
  return context;
}

absl::Status Context::CopiesFollow() {
  RETURN_IF_ERROR(compute_->Record(*computed_));
  return copies_->Wait(*computed_);
}

absl::Status Context::Enter() {
  RETURN_IF_ERROR(status());
  return Keep(device_->MakeCurrent());
}

absl::Status Context::Keep(absl::Status status) {
  base::MutexLock lock(mutex_);
  status_ = status;
  return status;
}

absl::Status Context::Finish(device::Stream& stream) {
  RETURN_IF_ERROR(status());
  return Keep(Await(stream));
}

absl::Status Context::Await(device::Stream& stream) {
  RETURN_IF_ERROR(stream.Record(*done_));
  const base::Clock& clock = *base::Clock::Real();
  const base::TimePoint begin = clock.Now();
  for (;;) {
    ASSIGN_OR_RETURN(const bool reached, device_->Reached(*done_));
    if (reached) return absl::OkStatus();
    const base::Duration waited = clock.Now() - begin;
    if (waited > kFinishDeadline) {
      return base::DeadlineExceeded("the device has not finished its work in {} s",
                                    base::ToSeconds(kFinishDeadline));
    }
    if (waited > kSpin) std::this_thread::sleep_for(kPause);
  }
}

absl::Status Launched(LaunchError error, const char* what) {
  if (error == nullptr) return absl::OkStatus();
  return base::Internal("{}: {}", what, error);
}

absl::StatusOr<std::byte*> Uploads::AddTogether(
    Context& context, std::initializer_list<std::span<const std::byte>> items) {
  size_t size = 0;
  for (const auto& item : items) size = After(size) + item.size();
  const auto fits = [&] {
    return chunk_ < chunks_.size() && used_ + size <= chunks_[chunk_].host->size();
  };
  while (chunk_ < chunks_.size() && !fits()) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    Chunk chunk;
    const size_t room = std::max(kChunkBytes, size);
    ASSIGN_OR_RETURN(chunk.host, context.device().AllocatePinned(room));
    ASSIGN_OR_RETURN(chunk.device, context.device().Allocate(room));
    chunks_.push_back(std::move(chunk));
    used_ = 0;
  }
  Chunk& chunk = chunks_[chunk_];
  std::byte* const host = chunk.host->data() + used_;
  std::byte* const to = chunk.device->data() + used_;
  used_ += (size + kAlignment - 1) / kAlignment * kAlignment;
  if (size == 0) return to;
  size_t at = 0;
  for (const auto& item : items) {
    at = After(at);
    if (!item.empty()) std::memcpy(host + at, item.data(), item.size());
    at += item.size();
  }
  RETURN_IF_ERROR(context.compute().CopyIn(to, {host, size}));
  return to;
}

absl::StatusOr<std::span<std::byte>> PinnedPages::Allocate(size_t bytes) {
  ASSIGN_OR_RETURN(auto memory, device_->AllocatePinned(bytes));
  const std::span<std::byte> given = memory->bytes();
  base::MutexLock lock(mutex_);
  blocks_.push_back(std::move(memory));
  return given;
}

void PinnedPages::Free(std::span<std::byte> bytes) {
  base::MutexLock lock(mutex_);
  std::erase_if(blocks_, [&](const auto& block) { return block->data() == bytes.data(); });
}

}  // namespace smartgen::executor::cuda
