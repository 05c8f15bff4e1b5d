#pragma once
// Stacked experts (stacked_experts.h) put together from files of one expert each.
//
//   "<layer>.experts.w1.<N>" (f, h), one a file  -->  "<layer>.experts.w1" (experts, f, h)
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lib/format/deepspeed_zero/checkpoint.h"

namespace tessera::deepspeed {

class StackedRows {
 public:
  /// Takes a tensor of a file of experts. False: it is no row of what is stacked.
  bool take(const ZeroCheckpoint& checkpoint, std::uint32_t file, const NamedTensor& item);

  /// Each parameter with the pieces that are there; a missing file leaves a hole, and is a finding.
  using Visit = std::function<void(const std::string& name, const TensorSpec& spec,
                                   const std::vector<ArchivePiece>& pieces)>;
  void each(ZeroCheckpoint& checkpoint, const Visit& visit) const;

 private:
  struct Stack {
    TensorSpec spec;
    std::vector<ArchivePiece> pieces;
  };
  std::map<std::string, Stack> stacks_;
};

}  // namespace tessera::deepspeed
