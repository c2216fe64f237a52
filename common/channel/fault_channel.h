// Injects faults into any Channel: what the tests of everything above run on.
//
// Faults are drawn on the sending side, per message, from a seeded generator. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/clock.h"
#include "common/channel/channel.h"

namespace smartgen::channel {

struct FaultOptions {
  uint64_t seed = 1;
  double drop = 0;  // probability: the message never goes out; on_done says OK, as a network would
  double corrupt = 0;    // one payload byte is flipped (in a copy)
  double duplicate = 0;  // goes out twice
  double reorder = 0;    // is held back behind the next message of its lane
  base::Duration delay_min{0};
  base::Duration delay_max{0};        // uniform; delivered by a helper thread
  int64_t close_after_messages = -1;  // the channel breaks after so many
  // Bytes a second over all lanes; 0: unlimited. For links that cannot be shaped by the system.
  double bandwidth = 0;
};

struct FaultCounts {
  int64_t dropped = 0, corrupted = 0, duplicated = 0, reordered = 0, delayed = 0;
};

class FaultChannel : public Channel {
 public:
  static std::shared_ptr<FaultChannel> Wrap(std::shared_ptr<Channel> inner, FaultOptions options);
  virtual FaultCounts counts() const = 0;
};

}  // namespace smartgen::channel
