#include "lib/format/megatron_torch/target_cut.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/megatron_torch.h>
#include <tessera/state/roles.h>

#include <algorithm>

#include "lib/format/megatron_torch/packed_experts.h"

namespace tessera::megatron_torch {
namespace {

StoragePiece rows_piece(std::uint32_t tensor, const Shape& shape, int dim, std::int64_t begin,
                        std::int64_t size) {
  Box box = Box::whole(shape);
  box.origin[static_cast<std::size_t>(dim)] = begin;
  box.shape[dim] = size;
  StoragePiece piece;
  piece.tensor = tensor;
  piece.chunk = Chunk::whole_of(std::move(box));
  return piece;
}

}  // namespace

void check_query_groups(const Args& args, std::int64_t tp, std::string_view name, Code code) {
  const bool qkv = name.find("linear_qkv.") != std::string_view::npos ||
                   name.find("query_key_value.") != std::string_view::npos;
  if (!qkv || tp == 1) return;
  const bool grouped = args.boolean("group_query_attention").value_or(false);
  const auto groups = args.integer(grouped ? "num_query_groups" : "num_attention_heads");
  if (!groups || *groups % tp == 0) return;
  in_tensor(name, [&] {
    fail(code, fmt::format("{} groups of query, key and value cannot be shared evenly by {} "
                           "tensor-parallel ranks",
                           *groups, tp));
  });
}

void check_expert_tensor_parallel(const Args& args, std::int64_t tp, bool has_experts, Code code) {
  if (!has_experts) return;
  const auto stated = args.integer("tensor_model_parallel_size");
  const auto experts = args.integer("expert_tensor_parallel_size");
  if (!experts || *experts == stated.value_or(tp)) return;
  fail(
      code,
      fmt::format("expert_tensor_parallel_size {}: experts cut by another size than the "
                  "tensor-parallel {}",
                  *experts, stated.value_or(tp)),
      "have Megatron-LM join them first: --ckpt-convert-format torch_dist --ckpt-convert-save DIR");
}

namespace {

/// Ranks of other dims than tp hold whole copies of what they hold.
void require_cuts_on_tp_alone(const TargetRequest& request) {
  if (!request.mesh) return;
  const auto& dims = request.mesh->dims();
  for (const auto& [glob, placements] : request.placements)
    for (std::size_t d = 0; d < std::min(dims.size(), placements.size()); ++d)
      if (dims[d].name != "tp" && placements[d].kind != Placement::Kind::kReplicate)
        fail(Code::kUnsupported,
             fmt::format("--placements '{}={}': Megatron's rank files cut tensors over tp alone, "
                         "not over {}",
                         printable(glob), placements[d].to_string(), dims[d].name),
             "use replicate there, or --to megatron-dist");
}

}  // namespace

TargetCut::TargetCut(const Manifest& source, const TargetRequest& request, const Args& args,
                     std::int64_t tp, std::int64_t ep)
    : source_(source), request_(request), args_(args), tp_(tp), ep_(ep) {
  require_cuts_on_tp_alone(request);
  std::map<std::string, Shape> weights;
  for (const StoredTensor& tensor : source.tensors)
    if (!tensor.embedded) weights.emplace(tensor.name, tensor.spec.shape);
  gated_ = args.gated().value_or(gated_by_shapes(weights));
  assume_plain_ = request.own.get(kAssumePlainFlag);
  const bool latent = std::ranges::any_of(
      weights, [](const auto& weight) { return is_latent_projection(weight.first); });
  if (!assume_plain_ && !latent && request.replicate.empty()) return;
  const Roles roles = find_roles(source.state);
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const Value& value = source.state.entries[i].value;
    if (roles.entries[i].role == Role::kModel && value.is_tensor())
      weights_.emplace(roles.entries[i].fqn, value.tensor_index());
  }
}

/// --replicate names the tensor, or the weight whose state it is. What Megatron's names cut cannot be
/// whole: its loader would take each copy for a part.
bool TargetCut::asked_whole(std::uint32_t tensor, const std::string& name,
                            const TpRule& rule) const {
  const auto asked = [&](std::uint32_t t) {
    return std::ranges::any_of(request_.replicate, [&](const std::string& glob) {
      return glob_match(glob, source_.tensors[t].name);
    });
  };
  const auto weight = weights_.find(name);
  if (!asked(tensor) && (weight == weights_.end() || !asked(weight->second))) return false;
  if (rule.cut != TpCut::kUnknown && rule.dim(source_.tensors[tensor].spec.shape.rank()) >= 0)
    fail(Code::kUnsupported,
         "--replicate: Megatron cuts it by its name, and would take a whole copy for a part",
         "name what is not cut, or rename it");
  return true;
}

/// The dim along which Megatron's ranks hold a plain weight: what they hold whole stays whole.
int TargetCut::plain_dim(const std::string& name) const {
  const auto weight = weights_.find(name);
  if (weight == weights_.end() || !source_.format.starts_with("megatron-")) return -1;
  const StoredTensor& stored = source_.tensors[weight->second];
  const Shape& shape = stored.spec.shape;
  int dim = -1;
  for (std::uint32_t c = 0; c < stored.chunk_count; ++c) {
    const Chunk chunk = source_.chunk(stored, c);
    for (int d = 0; d < shape.rank(); ++d) {
      if (chunk.box.shape[d] == shape[d]) continue;
      if (dim >= 0 && dim != d)
        fail(Code::kUnsupported, "it is cut along several dims, which is no plain cut",
             "say how with --placements 'NAME=...'");
      dim = d;
    }
  }
  return dim;
}

/// As the source's ranks have it, or as the layers that the arguments name have it.
bool TargetCut::has_latent_rows(const std::string& name) const {
  return plain_dim(name) == 0 || args_.text("transformer_impl") == "local";
}

bool TargetCut::stored_whole_everywhere(std::uint32_t tensor) const {
  const StoredTensor& stored = source_.tensors[tensor];
  if (stored.chunk_count < 2) return false;
  for (std::uint32_t c = 0; c < stored.chunk_count; ++c)
    if (source_.chunk(stored, c) != Chunk::whole_of(Box::whole(stored.spec.shape))) return false;
  return true;
}

/// --placements on a mesh with a dim tp goes first, then Megatron's names.
int TargetCut::cut_dim(std::uint32_t tensor, const std::string& name, const TpRule& rule) const {
  const int rank = source_.tensors[tensor].spec.shape.rank();
  for (const auto& [glob, placements] : request_.placements) {
    if (!glob_match(glob, source_.tensors[tensor].name) || !request_.mesh) continue;
    const auto& dims = request_.mesh->dims();
    if (placements.size() != dims.size())
      fail(Code::kInvalidArgument, fmt::format("'{}' gives {} placements, the mesh has {} dims",
                                               glob, placements.size(), dims.size()));
    for (std::size_t d = 0; d < dims.size(); ++d) {
      if (dims[d].name != "tp") continue;
      if (placements[d].kind == Placement::Kind::kReplicate) return -1;
      if (placements[d].kind == Placement::Kind::kShard && placements[d].dim < rank)
        return placements[d].dim;
      fail(Code::kUnsupported,
           fmt::format("placement {} on the mesh dim tp", placements[d].to_string()));
    }
  }
  if (asked_whole(tensor, name, rule)) return -1;
  if (is_latent_projection(name) && rank > 0 && has_latent_rows(name)) return 0;
  if (rule.cut != TpCut::kUnknown) return rule.dim(rank);
  if (rank == 0 || stored_whole_everywhere(tensor) || name.ends_with("_extra_state")) return -1;
  if (assume_plain_) return plain_dim(name);
  fail(Code::kUnsupported,
       fmt::format("its name does not say along which dim tensor parallelism cuts it"),
       "say it with --placements 'NAME=...' or --replicate NAME, rename it with --rules, or, if "
       "nothing is fused in it, keep the source's rows with --assume-plain");
}

std::int64_t TargetCut::share(std::int64_t extent, const std::string& what) const {
  if (extent % tp_ == 0) return extent / tp_;
  fail(Code::kInvalidArgument, fmt::format("{} {} cannot be shared evenly by {} tensor-parallel "
                                           "ranks",
                                           extent, what, tp_));
}

std::int64_t TargetCut::padded_rows(std::int64_t rows, const std::string& name) const {
  const auto divisor = args_.integer("make_vocab_size_divisible_by");
  if (!divisor || *divisor < 1) {
    in_tensor(name, [&] { share(rows, "rows of the vocabulary"); });
    return rows;
  }
  const auto multiple = checked_mul(*divisor, tp_);
  const auto padded =
      multiple ? checked_mul(ceil_div(std::max<std::int64_t>(rows, 1), *multiple), *multiple)
               : std::nullopt;
  if (!padded) fail(Code::kInvalidArgument, "make_vocab_size_divisible_by is far too large");
  return *padded;
}

std::int64_t TargetCut::share_experts(std::int64_t extent) const {
  if (extent % ep_ == 0) return extent / ep_;
  fail(Code::kInvalidArgument,
       fmt::format("{} experts cannot be shared evenly by {} expert-parallel ranks", extent, ep_));
}

/// Some experts, and of each a part along ffn, as the matrix that Megatron packs them in.
RankPart TargetCut::packed_part(std::uint32_t tensor, const std::string& name,
                                std::int64_t rank) const {
  const Shape& shape = source_.tensors[tensor].spec.shape;
  if (shape.rank() < 3) {
    if (tp_ * ep_ > 1) fail_packed();
    return whole(tensor);
  }
  const int dim = packed_tp_dim(name, shape.rank());
  Box box = Box::whole(shape);
  box.shape[0] = share_experts(shape[0]);
  box.shape[dim] = share(shape[dim], "rows of an expert");
  box.origin[0] = rank / tp_ * box.shape[0];
  box.origin[static_cast<std::size_t>(dim)] = rank % tp_ * box.shape[dim];
  StoragePiece piece;
  piece.tensor = tensor;
  RankPart out{packed_matrix(name, box.shape), {}};
  piece.chunk = Chunk::whole_of(std::move(box));
  out.pieces.push_back(std::move(piece));
  return out;
}

RankPart TargetCut::whole(std::uint32_t tensor) const {
  const Shape& shape = source_.tensors[tensor].spec.shape;
  StoragePiece piece;
  piece.tensor = tensor;
  piece.chunk = Chunk::whole_of(Box::whole(shape));
  return {shape, {std::move(piece)}};
}

RankPart TargetCut::part(std::uint32_t tensor, const std::string& rule_name,
                         std::int64_t rank) const {
  if (is_packed(rule_name)) return packed_part(tensor, rule_name, rank);
  rank %= tp_;
  const TpRule rule = tp_rule(rule_name);
  const TensorSpec& spec = source_.tensors[tensor].spec;
  const bool pads = rule.cut == TpCut::kVocabulary && rule.dim(spec.shape.rank()) == 0;
  if (tp_ == 1 && !pads) return whole(tensor);
  const int dim = cut_dim(tensor, rule_name, rule);
  if (dim < 0) return whole(tensor);
  check_query_groups(args_, tp_, rule_name, Code::kInvalidArgument);
  const Shape& shape = spec.shape;
  RankPart out{shape, {}};
  if (pads && dim == 0) {
    const std::int64_t each = padded_rows(shape[0], rule_name) / tp_;
    const std::int64_t begin = std::min(rank * each, shape[0]);
    const std::int64_t real = std::min(each, shape[0] - begin);
    out.shape[0] = each;
    if (real > 0) out.pieces.push_back(rows_piece(tensor, shape, 0, begin, real));
    if (each > real) {
      StoragePiece zeros;
      const TensorSpec padding{spec.dtype, Shape{(each - real) * shape.inner_numel(0)}};
      zeros.zero_bytes = static_cast<std::uint64_t>(padding.size_bytes());
      out.pieces.push_back(zeros);
    }
    return out;
  }
  if (rule.gated && gated_) {
    if (dim != 0 || shape[0] % 2 != 0)
      fail(Code::kUnsupported, "a gated matrix that is no pair [gate; up] of rows");
    const std::int64_t half = shape[0] / 2;
    const std::int64_t each = share(half, "rows of a gated matrix's halves");
    out.shape[0] = 2 * each;
    out.pieces.push_back(rows_piece(tensor, shape, 0, rank * each, each));
    out.pieces.push_back(rows_piece(tensor, shape, 0, half + rank * each, each));
    return out;
  }
  const std::int64_t each = share(shape[dim], dim == 0 ? "rows" : "columns");
  out.shape[dim] = each;
  out.pieces.push_back(rows_piece(tensor, shape, dim, rank * each, each));
  return out;
}

}  // namespace tessera::megatron_torch
