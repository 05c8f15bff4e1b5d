#pragma once
// Timeline: operations with what each has to wait for, and a clock that plays them. An operation takes a
// fixed time first (compute, the latency of a collective), then work on a link, which those that use
// it at the same time share. No threads, no randomness: equal operations give equal times.
#include <cstddef>
#include <string>
#include <vector>

namespace tessera::fsdp {

struct TimedOperation {
  std::string name;
  int lane = 0;
  double fixed = 0;  // seconds
  double work = 0;   // seconds on `link` alone
  int link = 0;
  bool collective = false;
  std::vector<int> after;  // begins when these have ended
  double begin = 0, end = 0;
};

class Timeline {
 public:
  static constexpr int kIntra = 0, kInter = 1;

  /// `after`: of operations added before.
  int add(TimedOperation operation);
  /// Sets begin and end of all. `inter_rate_beside_intra`: speed of kInter while kIntra is in use.
  void play(double inter_rate_beside_intra);
  const std::vector<TimedOperation>& operations() const { return operations_; }

 private:
  std::vector<TimedOperation> operations_;
};

}  // namespace tessera::fsdp
