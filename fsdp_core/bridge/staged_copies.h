#pragma once
// StagedCopies: copies from devices into pinned memory, all together on a stream of their own beside
// compute's work, behind what compute was given before. The host waits where it is asked to, once.
//
//   staging <- compute    the values of the moment of begin()
//   compute <- staging    before a later forward changes what may change in one (buffers)
//   host    <- staging    wait(): memory that was copied from may change, what was copied to can be read
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "fsdp_core/stream/stream.h"

namespace tessera::fsdp {

class StagedCopies {
 public:
  StagedCopies() = default;
  /// Waits.
  ~StagedCopies();
  StagedCopies(const StagedCopies&) = delete;
  StagedCopies& operator=(const StagedCopies&) = delete;

  /// `from` on a device, `to` in pinned memory. Both are kept until the end.
  /// `changes_in_forward`: compute waits for this one.
  void add(const at::Tensor& from, const at::Tensor& to, bool changes_in_forward);
  /// Queues what was added, on the thread whose compute made the values; the host waits for nothing.
  void begin();
  /// Until all is there; from any thread, and again. Throws what a copy threw.
  void wait();

 private:
  struct Copy {
    at::Tensor from, to;
    bool changes_in_forward;
  };
  std::vector<Copy> copies_;
  std::vector<std::pair<c10::Device, Event>> ends_;
};

}  // namespace tessera::fsdp
