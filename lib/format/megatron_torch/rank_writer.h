#pragma once
// One archive of one rank while it is put together: entries of its tree, and the draft of the file
// that their tensors lie in.
#include <tessera/state/value.h>

#include <string>
#include <utility>

#include "lib/format/megatron_torch/target_cut.h"
#include "lib/format/torch_files/archive_draft.h"

namespace tessera::megatron_torch {

class RankWriter {
 public:
  explicit RankWriter(const Manifest& source) : draft_(source, {.format = "megatron-torch"}) {}

  /// A tensor of the archive made of these pieces; its value refers to it.
  Value tensor(std::uint32_t tensor, RankPart part) {
    return draft_.part(tensor, part.shape, std::move(part.pieces));
  }
  Value whole(std::uint32_t tensor) { return draft_.whole(tensor); }
  Value value(const Value& value) { return draft_.take(value); }

  void add(Path path, Value value) {
    std::string name = dotted(path);
    state_.entries.push_back({std::move(name), std::move(path), std::move(value)});
  }
  StateDict& state() { return state_; }

  /// The archive; nothing may be added after it.
  ArchiveFile finish(std::string path, std::string prefix) {
    return draft_.finish(std::move(path),
                         state_.entries.empty() ? Value::dict({}) : unflatten(state_),
                         std::move(prefix));
  }

 private:
  ArchiveDraft draft_;
  StateDict state_;
};

}  // namespace tessera::megatron_torch
