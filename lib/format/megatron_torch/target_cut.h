#pragma once
// What a tensor-parallel rank of the target holds of a whole tensor: its shape, and the pieces its
// storage is made of. The inverse of TensorMerge. Pure.
#include <tessera/base/error.h>
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/format/megatron_torch/args.h"
#include "lib/format/megatron_torch/tp_rule.h"
#include "lib/format/torch_files/archive_plan.h"

namespace tessera::megatron_torch {

struct RankPart {
  Shape shape;
  std::vector<StoragePiece> pieces;  // row-major, behind each other
};

/// Sizes of the target and what decides cuts.
class TargetCut {
 public:
  /// `tp`, `ep`: tensor- and expert-parallel ranks of a stage.
  TargetCut(const Manifest& source, const TargetRequest& request, const Args& args, std::int64_t tp,
            std::int64_t ep = 1);

  /// `rule_name`: whose name decides. `rank`: the tensor-parallel one, plus tp() for each expert
  /// rank before it, which matters for packed experts alone. Throws kInvalidArgument for extents
  /// that the ranks cannot share and kUnsupported for a name without a rule.
  RankPart part(std::uint32_t tensor, const std::string& rule_name, std::int64_t rank) const;
  RankPart whole(std::uint32_t tensor) const;
  /// Rows that the vocabulary has with padding for this tensor-parallel size.
  std::int64_t padded_rows(std::int64_t rows, const std::string& name) const;
  std::int64_t tp() const { return tp_; }

 private:
  RankPart packed_part(std::uint32_t tensor, const std::string& name, std::int64_t rank) const;
  int cut_dim(std::uint32_t tensor, const std::string& name, const TpRule& rule) const;
  int plain_dim(const std::string& name) const;
  bool asked_whole(std::uint32_t tensor, const std::string& name, const TpRule& rule) const;
  bool has_latent_rows(const std::string& name) const;
  bool stored_whole_everywhere(std::uint32_t tensor) const;
  std::int64_t share(std::int64_t extent, const std::string& what) const;
  std::int64_t share_experts(std::int64_t extent) const;

  const Manifest& source_;
  const TargetRequest& request_;
  const Args& args_;
  std::int64_t tp_, ep_;
  bool gated_ = false;
  bool assume_plain_ = false;
  std::map<std::string, std::uint32_t> weights_;  // by FQN; only where a flag asks for them
};

/// Throws when query, key and value groups cannot be shared by `tp` ranks as whole groups.
void check_query_groups(const Args& args, std::int64_t tp, std::string_view name, Code code);

/// Experts are read and written as all other weights: cut by the one tensor-parallel size. Throws
/// where args give them another one.
void check_expert_tensor_parallel(const Args& args, std::int64_t tp, bool has_experts, Code code);

}  // namespace tessera::megatron_torch
