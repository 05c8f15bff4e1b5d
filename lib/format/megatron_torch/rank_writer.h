#pragma once
// One archive of one rank while it is put together: entries of its tree, and the tensors and
// storages they name.
#include <tessera/state/manifest.h>

#include <cstdint>
#include <string>
#include <unordered_map>

#include "lib/format/megatron_torch/target_cut.h"
#include "lib/format/torch_files/archive_plan.h"
#include "lib/state/edit/tensor_remapper.h"

namespace tessera::megatron_torch {

class RankWriter {
 public:
  RankWriter(const Manifest& source, const TargetCut& cut) : source_(source), cut_(cut) {}

  /// A tensor of the archive made of these pieces; its value refers to it.
  Value tensor(std::uint32_t tensor, RankPart part);
  /// The whole of a source tensor, each once.
  Value whole(std::uint32_t tensor);
  /// A value, with the tensors it embeds.
  Value value(const Value& value);

  void add(Path path, Value value);
  StateDict& state() { return state_; }

  /// The archive; nothing may be added after it.
  ArchiveFile finish(std::string path, std::string prefix);

 private:
  const Manifest& source_;
  const TargetCut& cut_;
  StateDict state_;
  ArchiveFile file_;
  std::unordered_map<std::uint32_t, std::uint32_t> whole_;
};

}  // namespace tessera::megatron_torch
