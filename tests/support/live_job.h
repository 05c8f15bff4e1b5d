#pragma once
// A training job made up by a test: tensors whose every byte is known, cut among ranks at random,
// each rank with memory and a live state of its own. The oracle is content_byte() of
// reshard_scene.h.
#include <tessera/base/rank_group.h>
#include <tessera/state/live_state.h>

#include <functional>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/reshard_scene.h"

namespace tessera::test {

/// Runs `body` as every rank, each in a thread; what each rank threw, "" for nothing.
std::vector<std::string> on_ranks(std::vector<std::unique_ptr<RankGroup>>& groups,
                                  const std::function<void(RankGroup&)>& body);
/// The same with a fresh group, whose ranks leave it when they are done.
std::vector<std::string> on_ranks(int size, const std::function<void(RankGroup&)>& body);
/// Requires that no rank threw.
void require_quiet(const std::vector<std::string>& thrown);

/// A tensor of the job. Numbers are those of content_byte().
struct JobTensor {
  std::string name;
  std::uint32_t number = 0;
  TensorSpec spec;
};

/// Names, types and shapes; the same for every world size.
std::vector<JobTensor> random_tensors(std::uint64_t seed);

class LiveJob {
 public:
  /// Cuts the tensors among `world` ranks: whole everywhere, whole on one, boxes or flat ranges on
  /// one rank each, or on several. Some pieces lie in memory with strides.
  LiveJob(std::vector<JobTensor> tensors, int world, std::uint64_t seed);

  /// The state of one rank; callbacks and values are the test's.
  LiveState state(int rank) const;
  /// Gives every element its content, or zeros.
  void fill(bool content = true);
  /// Elements that are not what they should be.
  std::int64_t wrong_elements() const;
  const std::vector<JobTensor>& tensors() const { return tensors_; }
  int world() const { return static_cast<int>(pieces_.size()); }

 private:
  struct Piece {
    std::uint32_t tensor = 0;  // in tensors_
    Chunk chunk;
    std::vector<std::int64_t> strides;
    Bytes memory;
    std::vector<std::size_t> at;        // byte of each element
    std::vector<std::int64_t> element;  // its number in the tensor
  };
  void add(int rank, std::uint32_t tensor, const Chunk& chunk, std::mt19937_64& random);

  std::vector<JobTensor> tensors_;
  std::vector<bool> replicated_;          // by tensor
  std::vector<std::list<Piece>> pieces_;  // by rank
};

}  // namespace tessera::test
