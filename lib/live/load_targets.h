#pragma once
// LoadTargets: places in memory that a load fills together.
//
//   add, plan            which bytes of the checkpoint they need; coverage is proved
//   take_room            memory to read them aside
//   read                 aside where there is room, else straight to their places
//   prove                reads all of it and proves checksums, and keeps nothing
//   land                 from aside to their places
#include <tessera/reshard/fill.h>
#include <tessera/reshard/plan.h>
#include <tessera/storage/aligned_buffer.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/live/record_proof.h"

namespace tessera {

/// What targets are read from. `manifest` is located for them.
struct LoadSource {
  const Manifest& manifest;
  const Directory& directory;
  const TransferOptions& options;
};

class LoadTargets {
 public:
  /// Shape and type as in `manifest`, which plan() is given. `name`: for messages; outlives this.
  void add(MemoryTarget target, std::string_view name);
  /// Throws kCorrupt for holes and overlaps of what is stored. The manifest must outlive the rest.
  void plan(const Manifest& manifest);

  std::span<const MemoryTarget> targets() const { return targets_; }
  /// Chunks of the manifest that are read.
  std::vector<std::uint64_t> chunks() const;
  /// Bytes of the places.
  std::uint64_t bytes() const { return plan_ ? plan_->tensor_bytes() : 0; }

  /// Throws kResourceExhausted.
  void take_room();
  /// Returns the bytes read. `canaries`: proves that no element was left as it was (kInternal).
  std::uint64_t read(const LoadSource& source, bool canaries);
  std::uint64_t prove(const LoadSource& source);
  /// Records that the last of these two has not proved, since it read parts of them. Once.
  std::vector<RecordToProve> take_unproved();
  /// `proved`: compares what the places hold then (kInternal); without it, this cannot fail.
  void land(bool proved);

 private:
  void keep_unproved(const std::vector<UnprovedRecord>& records);
  std::uint64_t prove_touched(const LoadSource& source, std::span<const MemoryTarget> filled) const;

  std::vector<MemoryTarget> targets_;
  std::vector<std::string_view> names_;
  OutputPlan output_;
  std::optional<Plan> plan_;
  const Manifest* manifest_ = nullptr;
  std::vector<RecordToProve> unproved_;
  std::vector<MemoryTarget> aside_;  // by target, in room_
  AlignedBuffer room_;
};

}  // namespace tessera
