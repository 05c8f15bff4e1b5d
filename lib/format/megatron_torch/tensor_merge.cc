#include "lib/format/megatron_torch/tensor_merge.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>

#include <algorithm>

#include "lib/format/megatron_torch/packed_experts.h"
#include "lib/format/megatron_torch/target_cut.h"
#include "lib/format/torch_files/archive_bytes.h"

namespace tessera::megatron_torch {

/// How the ranks' parts lie in the whole.
struct TensorMerge::Cut {
  TensorSpec whole;
  int dim = -1;  // -1: replicated
  bool gated = false;
  std::vector<std::int64_t> begin;  // along dim, per rank; gated: of the gates
  std::vector<std::int64_t> extent;
  std::int64_t stored_extent = 0;  // along dim, before padding is taken off
};

namespace {

const Part* first_part(const std::vector<TpParts>& replicas) {
  for (const TpParts& parts : replicas)
    for (const auto& part : parts)
      if (part) return &*part;
  return nullptr;
}

/// Rank t's part in any replica.
const Part* part_of(const std::vector<TpParts>& replicas, std::size_t t) {
  for (const TpParts& parts : replicas)
    if (parts[t]) return &*parts[t];
  return nullptr;
}

[[noreturn]] void fail_unknown(const std::string& name) {
  fail(
      Code::kUnsupported,
      fmt::format("tensor-parallel ranks hold different parts of \"{}\", and its name does not say "
                  "along which dim it is cut",
                  name),
      "if the ranks hold plain rows of it, with nothing fused: --assume-plain");
}

/// Whose name decides, whether or not it stands below the model's key.
std::string decider(const std::string& rule_name) {
  constexpr std::string_view kRoot = "model.";
  return rule_name.starts_with(kRoot) ? rule_name.substr(kRoot.size()) : rule_name;
}

std::int64_t summed(std::int64_t a, std::int64_t b) {
  const auto sum = checked_add(a, b);
  if (!sum) fail(Code::kCorrupt, "its parts have more than 2^63 rows");
  return *sum;
}

}  // namespace

const Shape& TensorMerge::shape_of(const Part& part) const {
  return part.view ? *part.view : ranks_.tensor(part.file, part.tensor).shape;
}

std::optional<bool> TensorMerge::same(const Part& a, const Part& b) const {
  if (shape_of(a) != shape_of(b)) return false;
  if (a.view || b.view) return std::nullopt;
  return known_equal(ranks_.builder.archive(a.file), a.tensor, ranks_.builder.archive(b.file),
                     b.tensor);
}

bool all_same(const Ranks& ranks, const TpParts& parts) {
  const Part* first = nullptr;
  for (const auto& part : parts) {
    if (!part) continue;
    if (!first) {
      first = &*part;
      continue;
    }
    const auto same = known_equal(ranks.builder.archive(first->file), first->tensor,
                                  ranks.builder.archive(part->file), part->tensor);
    if (!same.value_or(false)) return false;
  }
  return true;
}

/// Dim along which a tensor without a rule is sharded: -1 if all ranks hold the same, else rows, if
/// that may be assumed. State is sharded as its parameter, which comes first: zeros are the same on
/// all ranks.
int TensorMerge::plain_dim(const std::string& rule_name, const Shape& model,
                           const TpParts& parts) const {
  const auto decided = ranks_.plain_rows.find(decider(rule_name));
  const bool is_state = decided != ranks_.plain_rows.end();
  if (is_state && decided->second && model.rank() > 0) return 0;
  const bool same = all_same(ranks_, parts);
  if (!same && (is_state || !ranks_.assume_plain || model.rank() == 0)) fail_unknown(rule_name);
  ranks_.plain_rows.emplace(decider(rule_name), !same);
  if (same) return -1;
  ranks_.findings.note(Finding::kAssumedPlain, Severity::kInfo,
                       "its name does not say how tensor parallelism cuts it: taken as plain rows",
                       "", rule_name);
  return 0;
}

/// 0 or -1: whether the ranks hold rows of a latent projection, or all of it. The arguments say how
/// many rows there are; without them copies that differ are parts.
int TensorMerge::latent_dim(const std::string& rule_name, const Shape& model,
                            const TpParts& parts) const {
  if (model.rank() == 0) return -1;
  const auto decided = ranks_.plain_rows.find(decider(rule_name));
  if (decided != ranks_.plain_rows.end()) return decided->second ? 0 : -1;
  const bool query = rule_name.find("linear_q_down_proj") != std::string::npos;
  std::optional<std::int64_t> rows = ranks_.args.integer(query ? "q_lora_rank" : "kv_lora_rank");
  if (rows && !query) {
    const auto position = ranks_.args.integer("qk_pos_emb_head_dim");
    rows = position ? checked_add(*rows, *position) : std::nullopt;
  }
  const auto all = checked_mul(model[0], static_cast<std::int64_t>(parts.size()));
  const bool cut = rows && *rows == model[0]      ? false
                   : rows && all && *rows == *all ? true
                                                  : !all_same(ranks_, parts);
  ranks_.plain_rows.emplace(decider(rule_name), cut);
  return cut ? 0 : -1;
}

TensorMerge::Cut TensorMerge::cut_of(const std::string& rule_name,
                                     const std::vector<TpParts>& replicas) const {
  const Part& first = *first_part(replicas);
  const Shape& model = shape_of(first);
  const TpRule rule = tp_rule(rule_name);
  Cut cut;
  cut.whole = {ranks_.tensor(first.file, first.tensor).dtype, model};
  const std::size_t tp = replicas[0].size();
  const std::int64_t rows =  // 0: the vocabulary may be padded, or is none
      rule.cut == TpCut::kVocabulary ? ranks_.args.integer(kTrueVocabulary).value_or(0) : 0;
  if (tp == 1 && rows < 1) return cut;
  cut.dim = is_latent_projection(rule_name) ? latent_dim(rule_name, model, replicas[0])
            : rule.cut == TpCut::kUnknown   ? plain_dim(rule_name, model, replicas[0])
                                            : rule.dim(model.rank());
  if (cut.dim < 0) return cut;
  check_query_groups(ranks_.args, static_cast<std::int64_t>(tp), rule_name, Code::kUnsupported);
  cut.gated = rule.gated && ranks_.gated;
  std::int64_t end = 0;
  for (std::size_t t = 0; t < tp; ++t) {
    const Part* part = part_of(replicas, t);
    const Shape& shape = part ? shape_of(*part) : model;
    Shape other = shape;
    if (shape.rank() == model.rank()) other[cut.dim] = model[cut.dim];
    if (other != model)
      fail(Code::kCorrupt, fmt::format("tensor-parallel rank {} holds a {}, rank 0 a {}", t,
                                       shape.to_string(), model.to_string()));
    const std::int64_t extent = shape[cut.dim];
    if (cut.gated && extent % 2 != 0)
      fail(Code::kCorrupt,
           fmt::format("a gated matrix of {} rows, which is no pair of halves", extent));
    cut.begin.push_back(cut.gated ? end / 2 : end);
    cut.extent.push_back(extent);
    end = summed(end, extent);
  }
  cut.whole.shape[cut.dim] = cut.stored_extent = end;
  if (rows >= 1 && rows <= end) cut.whole.shape[cut.dim] = rows;
  return cut;
}

void TensorMerge::check_replicas(const std::string& name, const std::vector<TpParts>& replicas,
                                 bool across_tp) const {
  const std::size_t tp = replicas[0].size();
  for (std::size_t t = 0; t < tp; ++t) {
    const Part* first = part_of(replicas, across_tp ? 0 : t);
    for (const TpParts& parts : replicas) {
      if (!first || !parts[t] || first == &*parts[t]) continue;
      const std::optional<bool> known = same(*first, *parts[t]);
      if (!known) ranks_.uncompared.insert(name);
      if (known.value_or(true)) continue;
      const std::vector<StoredFile>& files = ranks_.builder.manifest().files;
      ranks_.findings.error(Finding::kDifferentCopies,
                            fmt::format("its copy differs from the one in {}, though every rank "
                                        "should hold the same",
                                        files[first->file].path),
                            files[parts[t]->file].path, name);
    }
  }
}

std::uint32_t TensorMerge::add(const Path& path, const std::string& rule_name,
                               const std::vector<TpParts>& replicas) {
  const std::string name = dotted(path);
  const Part& first = *first_part(replicas);
  if (is_packed(rule_name) && shape_of(first).rank() > 2)
    return in_tensor(name, [&] { return add_packed(path, rule_name, replicas); });
  const Cut cut = in_tensor(name, [&] { return cut_of(rule_name, replicas); });
  check_replicas(name, replicas, cut.dim < 0);
  std::vector<ArchivePiece> pieces;
  const auto add_rows = [&](const Part& part, std::int64_t begin, std::int64_t size,
                            std::int64_t skipped) {
    Box box = Box::whole(cut.whole.shape);
    box.origin[static_cast<std::size_t>(cut.dim)] = begin;
    box.shape[cut.dim] = size;
    pieces.push_back({Chunk::whole_of(box), part.file, part.tensor, part.first_element + skipped});
  };
  for (const TpParts& parts : replicas) {
    for (std::size_t t = 0; t < parts.size(); ++t) {
      if (!parts[t]) continue;
      if (cut.dim < 0) {
        pieces.push_back({Chunk::whole_of(Box::whole(cut.whole.shape)), parts[t]->file,
                          parts[t]->tensor, parts[t]->first_element});
        continue;
      }
      const std::int64_t inner = cut.whole.shape.inner_numel(cut.dim);
      const std::int64_t rows = std::min(cut.extent[t], cut.whole.shape[cut.dim] - cut.begin[t]);
      if (!cut.gated) {
        if (rows > 0 || cut.extent[t] == 0) add_rows(*parts[t], cut.begin[t], rows, 0);
      } else {
        const std::int64_t half = cut.extent[t] / 2;
        add_rows(*parts[t], cut.begin[t], half, 0);
        add_rows(*parts[t], cut.stored_extent / 2 + cut.begin[t], half, half * inner);
      }
    }
  }
  return add_pieces(path, cut.whole, pieces, first);
}

/// Every rank holds as many experts, and as much of each.
std::uint32_t TensorMerge::add_packed(const Path& path, const std::string& rule_name,
                                      const std::vector<TpParts>& replicas) {
  const Part& first = *first_part(replicas);
  const Shape& local = shape_of(first);
  const int dim = packed_tp_dim(rule_name, local.rank());
  const auto scaled = [&](int d, std::int64_t ranks) {
    const auto extent = checked_mul(local[d], ranks);
    if (!extent) fail(Code::kCorrupt, "its parts have more than 2^63 rows");
    return *extent;
  };
  TensorSpec whole{ranks_.tensor(first.file, first.tensor).dtype, local};
  whole.shape[0] = scaled(0, ranks_.grid.ep);
  whole.shape[dim] = scaled(dim, ranks_.grid.tp);
  std::vector<ArchivePiece> pieces;
  for (const TpParts& parts : replicas) {
    for (std::size_t slot = 0; slot < parts.size(); ++slot) {
      if (!parts[slot]) continue;
      if (shape_of(*parts[slot]) != local)
        in_file(ranks_.builder.manifest().files[parts[slot]->file].path, [&] {
          fail(Code::kCorrupt, fmt::format("experts {}, where another rank holds {}",
                                           shape_of(*parts[slot]).to_string(), local.to_string()));
        });
      Box box = Box::whole(local);
      const auto at = static_cast<std::int64_t>(slot);
      box.origin[0] = at / ranks_.grid.tp * local[0];
      box.origin[static_cast<std::size_t>(dim)] = at % ranks_.grid.tp * local[dim];
      pieces.push_back({Chunk::whole_of(std::move(box)), parts[slot]->file, parts[slot]->tensor,
                        parts[slot]->first_element});
    }
  }
  return add_pieces(path, whole, pieces, first);
}

std::uint32_t TensorMerge::add_pieces(const Path& path, const TensorSpec& spec,
                                      const std::vector<ArchivePiece>& pieces, const Part& like) {
  const std::uint32_t number = ranks_.builder.add_tensor(path, spec, pieces);
  const ArchiveTensor& stored = ranks_.tensor(like.file, like.tensor);
  ranks_.builder.tensor(number).is_parameter = stored.is_parameter;
  ranks_.builder.tensor(number).requires_grad = stored.requires_grad;
  return number;
}

}  // namespace tessera::megatron_torch
