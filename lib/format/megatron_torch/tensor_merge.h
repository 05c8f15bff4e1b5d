#pragma once
// One logical tensor from what the tensor-parallel ranks hold of it.
//
//   column    rank 0's rows | rank 1's rows ...
//   gated     rank t holds [gate_t; up_t]: all gates, then all ups
//   row       columns side by side
//   else      every rank holds the whole: replicas, checked by their CRCs
//   packed    experts of expert-parallel ranks behind each other, each cut along ffn
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/format/megatron_torch/ranks.h"
#include "lib/format/megatron_torch/tp_rule.h"

namespace tessera::megatron_torch {

/// A rank's stored tensor, or a part of a flat buffer seen in a parameter's shape.
struct Part {
  std::uint32_t file = 0;
  std::uint32_t tensor = 0;
  std::int64_t first_element = 0;
  std::optional<Shape> view;  // nullopt: the stored tensor as it is
};
/// Per tensor-parallel rank (packed experts: those of the first expert-parallel rank, then the
/// next one's); nullopt: that rank's file is missing (tolerated).
using TpParts = std::vector<std::optional<Part>>;

class TensorMerge {
 public:
  explicit TensorMerge(Ranks& ranks) : ranks_(ranks) {}

  /// Adds the tensor under `path`. `replicas`: one or more sets of parts with the same content
  /// (expert-parallel ranks, tied copies). `rule_name`: whose name decides the cut: the
  /// parameter's, for its optimizer state. Returns its number. Throws kCorrupt for parts that do
  /// not fit and kUnsupported for a tensor that differs between ranks under a name without a rule.
  std::uint32_t add(const Path& path, const std::string& rule_name,
                    const std::vector<TpParts>& replicas);

 private:
  struct Cut;
  std::uint32_t add_packed(const Path& path, const std::string& rule_name,
                           const std::vector<TpParts>& replicas);
  std::uint32_t add_pieces(const Path& path, const TensorSpec& spec,
                           const std::vector<ArchivePiece>& pieces, const Part& like);
  Cut cut_of(const std::string& rule_name, const std::vector<TpParts>& replicas) const;
  int latent_dim(const std::string& rule_name, const Shape& model, const TpParts& parts) const;
  int plain_dim(const std::string& rule_name, const Shape& model, const TpParts& parts) const;
  void check_replicas(const std::string& name, const std::vector<TpParts>& replicas,
                      bool across_tp) const;
  const Shape& shape_of(const Part& part) const;
  std::optional<bool> same(const Part& a, const Part& b) const;
  Ranks& ranks_;
};

/// True when all of these stored tensors have one type and shape and, as far as CRCs show, the same
/// bytes.
bool all_same(const Ranks& ranks, const TpParts& parts);

}  // namespace tessera::megatron_torch
