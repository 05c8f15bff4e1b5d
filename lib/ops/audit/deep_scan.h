#pragma once
// The reading half of `deep`: numbers of every tensor of one checkpoint, in one pass, from all of its
// blocks or from every n-th.
#include <tessera/ops/audit.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lib/ops/audit/facts.h"

namespace tessera {

/// What sampling leaves out or takes whole: a tensor is cut into blocks of this many elements.
inline constexpr std::int64_t kAuditBlock = 32768;

struct DeepPlan {
  std::uint64_t every = 1;     // of blocks; smaller tensors are read whole
  std::size_t elements = 512;  // most that are kept of each tensor
  bool replicas = true;        // compare copies, and steps of all parameters
  std::function<bool(const TensorFact&)> wants;
};

/// Blocks of a tensor, in order: `first`, `first + every`, ...
struct BlockChoice {
  std::int64_t blocks = 0;  // of the tensor
  std::int64_t first = 0, every = 1;
  std::int64_t chosen() const { return blocks == 0 ? 0 : (blocks - 1 - first) / every + 1; }
};
/// The same for a name and a size in every checkpoint.
BlockChoice choose_blocks(std::string_view name, std::int64_t numel, std::uint64_t every);
/// Elements in the chosen blocks.
std::int64_t chosen_numel(const BlockChoice& choice, std::int64_t numel);

struct TensorNumbers {
  std::uint32_t id = 0;
  std::int64_t count = 0;  // elements read
  std::int64_t nan = 0, inf = 0;
  std::int64_t first_bad = -1;  // flat index of the first NaN or Inf
  double l2 = 0;                // of the whole tensor, estimated where it was sampled
  double l2_error = 0;          // relative standard error of that
  double mean = 0;
  double abs_max = 0;
  bool all_zero = false;
  std::uint64_t digest = 0;  // of the bytes read
  std::vector<double>
      sample;  // elements spread evenly over what was read, the same in each checkpoint
};

struct DeepNumbers {
  std::vector<TensorNumbers> tensors;  // by id
  std::vector<std::string> drifted;    // tensors whose copies differ
  std::string drift;                   // the first of them, in words
  std::uint32_t odd_steps = 0;
  std::string odd_step;
  std::uint64_t bytes_read = 0;
};

/// Opens the part again and reads what `plan` wants. Throws what opening and reading throw.
DeepNumbers scan_part(FileSystem& fs, const AuditPart& part, const AuditOptions& options,
                      const DeepPlan& plan, AuditNames& names);

}  // namespace tessera
