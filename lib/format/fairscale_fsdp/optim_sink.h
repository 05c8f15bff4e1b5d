#pragma once
// Where an optimizer's state goes while it is read: <optim>.state.<fqn>.<leaf>, as leaves, or, as
// FairScale itself has no gathered form of it (flatten_parameters=False), as one value for each
// parameter with the tensors inside. Not thread-safe.
#include <string>
#include <utility>
#include <vector>

#include "lib/format/fairscale_fsdp/reader.h"
#include "lib/state/fields.h"

namespace tessera::fairscale {

class OptimSink {
 public:
  OptimSink(Checkpoint& checkpoint, bool as_values)
      : checkpoint_(checkpoint),
        root_(root_path(checkpoint.description->marks.optim_root)),
        as_values_(as_values) {}

  const Path& root() const { return root_; }

  void begin(const std::string& fqn);
  void tensor(const std::string& leaf, const TensorSpec& spec, std::span<const ArchivePiece> pieces,
              bool sharded);
  /// A stored tensor of a shape of its own.
  void whole(const std::string& leaf, TensorRef ref);
  /// Several, as a list.
  void list(const std::string& leaf, const std::vector<TensorRef>& refs);
  void value(const std::string& leaf, std::uint32_t file, const Value& value);
  /// A number as a tensor without dims.
  void scalar(const std::string& leaf, DType dtype, double number);
  void end();

  /// <optim>.param_groups.<index>: options as stored in `file`, members by FQN.
  void group(std::int64_t index, std::uint32_t file, const Value& group,
             const std::vector<std::string>& members);
  void entry(const Path& path, Value value);

 private:
  std::uint32_t add(const Path& path, const TensorSpec& spec, std::span<const ArchivePiece> pieces);

  Checkpoint& checkpoint_;
  Path root_;
  bool as_values_;
  Path at_;           // of the parameter that is being added
  ValueDict inside_;  // as values: its leaves
};

}  // namespace tessera::fairscale
