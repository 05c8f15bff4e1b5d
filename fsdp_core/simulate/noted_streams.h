#pragma once
// Streams that record: what the runtime gives them runs at once, on tensors whose values do not
// matter, and is recorded with all that it would have waited for. The host never waits, as a host
// that is far ahead of its device.
#include <tessera/fsdp/communicator.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp_core/simulate/timeline.h"
#include "fsdp_core/stream/stream.h"

namespace tessera::fsdp {

class Notes {
 public:
  /// A stream of that name; one more each time.
  int add_lane(std::string name);
  const std::vector<std::string>& lanes() const { return lane_names_; }

  /// Work of the lane that runs now: the one whose stream called, else compute (lane 0).
  int note(TimedOperation operation);
  /// Collectives of one group do not overlap.
  int note_collective(const Communicator* group, TimedOperation operation);
  /// The point after all that the lane was given so far, as an operation that takes no time.
  int point(int lane);
  void wait(int lane, int operation) {
    pending_[static_cast<std::size_t>(lane)].push_back(operation);
  }
  /// What is noted from now on was given after the host saw that.
  void host_waited(int operation) { host_ = operation; }
  /// The host finds all that was noted so far done, without having waited: a step is over.
  void settle() { settled_ = static_cast<int>(timeline.operations().size()); }
  bool is_settled(int operation) const { return operation < settled_; }

  int current_lane = 0;
  Timeline timeline;

 private:
  std::vector<std::string> lane_names_;
  std::vector<int> last_;                  // of each lane; -1: none
  std::vector<std::vector<int>> pending_;  // what the lane's next operation waits for
  std::map<const Communicator*, int> last_of_group_;
  int host_ = -1, settled_ = 0;
};

/// `serial_all_reduce`: what would go to the stream "all-reduce" goes to "reduce".
std::shared_ptr<StreamFactory> noted_streams(std::shared_ptr<Notes> notes, bool serial_all_reduce);

}  // namespace tessera::fsdp
