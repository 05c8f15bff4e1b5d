#pragma once
// Ranks as processes of this machine: forked children that talk over sockets, so that a test can
// kill one. A peer that is gone is an error on every rank at once: its sockets close.
#include <tessera/base/rank_group.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::test {

/// How one rank ended.
struct RankEnd {
  bool killed = false;  // by SIGKILL
  std::string thrown;   // what() of what its body threw; "" for nothing
  double seconds = 0;   // from the first kill of the run to its end; 0 when nobody was killed
};

/// Runs `body` as every rank, each in a process of its own, and waits for all. Call it while this
/// process has one thread. Ranks that are still there after 30 s are killed and have thrown
/// "still running".
std::vector<RankEnd> in_processes(int size, const std::function<void(RankGroup&)>& body);

}  // namespace tessera::test
