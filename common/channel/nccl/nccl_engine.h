// Channels over NCCL, see nccl_channel.h. One engine a process and device: its thread issues all
// operations of the device and polls them; it does not wait for the work of the device, the network
// or a peer.
//
// Why no circle of devices can wait for one another, even if a device runs one operation at a time
// in the order of issue: data goes from senders to receivers only; a receiving device has receives
// of one pair outstanding at a time (they take turns); and a send is issued only after its receive
// was. So every send that was issued meets a receive that nothing stands before but receives from
// the same sender.
//
// A channel that fails (an error of the communicator, a deadline, the peer's end) is aborted by a
// helper thread, because an abort may hang. If it does, the process cannot be saved: on_stuck.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/channel/nccl/nccl.h"
#include "common/channel/tcp/tcp_engine.h"

namespace smartgen::channel {

// What both ends must know of a pairing; travels on the control stream.
struct NcclTicket {
  NcclUniqueId id{};
  uint32_t epoch = 0;  // counts the pairings of the sender's process
};

struct NcclStats {
  int channels = 0;  // waiting for their peer, joining, up or closing
  int aborting = 0;  // communicators
  // Memory of the device that was gone after communicators were made: measured, so that what others
  // took at the same moment counts as well.
  uint64_t communicator_bytes = 0;
  uint64_t staging_bytes = 0;  // of the device; as much again is pinned
  int64_t aborts = 0;          // that have ended
  int free_slots = 0;
};

class NcclEngine {
 public:
  struct Options {
    // A payload goes in pieces of so many bytes, each through a slot of staging on both sides. The
    // same at both ends.
    uint64_t piece_bytes = 4 << 20;
    int slots = 4;
    // Offered to a receiver and not yet sent: background that on-demand answers may find ahead of
    // them in the network.
    uint64_t window_bytes = 16 << 20;
    // Receives issued for a pair before another pair has its turn.
    int turn_pieces = 8;
    // Communicators at a time: each takes device memory (nccl#2363).
    int max_pairs = 16;
    uint64_t max_queued_bytes = 1ull << 30;  // of a lane
    int max_queued_messages = 1 << 16;
    base::Duration piece_timeout = std::chrono::seconds(4);
    base::Duration offer_timeout = std::chrono::seconds(30);
    base::Duration abort_timeout = std::chrono::seconds(10);
    // An abort hangs. Called on the engine's thread. Empty: the process ends with status 75, for
    // whoever supervises it to start it anew.
    std::function<void(const std::string& why)> on_stuck;
  };
  // `nccl` and `tcp` must outlive the engine. ResourceExhausted if the staging does not fit.
  static absl::StatusOr<std::unique_ptr<NcclEngine>> Create(Options options, Nccl* nccl,
                                                            TcpEngine* tcp,
                                                            const base::Clock* clock);
  // Ends all channels: their receivers have heard OnClosed when it returns. No Connect may be
  // running.
  virtual ~NcclEngine() = default;

  virtual const Options& options() const = 0;
  virtual int version() const = 0;  // NCCL's; must be equal at both ends
  // ResourceExhausted if there are max_pairs already.
  virtual absl::StatusOr<NcclTicket> MakeTicket() = 0;

  using OnChannel = TcpEngine::OnChannel;
  // As TcpEngine's, with the same contract. The listening side sends, the dialling side receives.
  // ResourceExhausted if there are max_pairs already.
  virtual void Expect(const base::ChannelKey& key, const NcclTicket& ticket,
                      std::shared_ptr<Receiver> receiver, base::Duration timeout,
                      OnChannel on_channel) = 0;
  virtual absl::StatusOr<std::shared_ptr<Channel>> Connect(const std::string& host, int port,
                                                           const base::ChannelKey& key,
                                                           const NcclTicket& ticket,
                                                           std::shared_ptr<Receiver> receiver,
                                                           base::Deadline deadline) = 0;
  virtual NcclStats stats() const = 0;
};

}  // namespace smartgen::channel
