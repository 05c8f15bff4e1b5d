// distrib_optim.pt -> state of whole parameters.
#include "lib/format/megatron_torch/buckets.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "lib/format/megatron_torch/bucket_layout.h"
#include "lib/format/megatron_torch/optimizer_merge.h"
#include "lib/format/megatron_torch/optimizer_parts.h"

namespace tessera::megatron_torch {
namespace {

constexpr std::int64_t kLeastBucket = 40'000'000;   // Megatron's default: at least this,
constexpr std::int64_t kBucketPerRank = 1'000'000;  // and this per data-parallel rank

/// One flat buffer set of one rank: a dict of buffers of equal length.
struct Buffers {
  const Value* dict = nullptr;
  std::optional<DType> dtype;  // of its parameters, where the key says it
  std::int64_t number = 0;     // gbuf_idx
  std::size_t chunk = 0;       // model chunk
  std::int64_t numel = 0;
};

std::optional<DType> param_dtype(const Value& key) {
  if (key.kind() == Value::Kind::kDType) return key.as_dtype();
  if (key.kind() == Value::Kind::kTuple && !key.as_list().empty() &&
      key.as_list()[0].kind() == Value::Kind::kDType)
    return key.as_list()[0].as_dtype();
  return std::nullopt;
}

class RankBuckets {
 public:
  RankBuckets(Ranks& ranks, const RankFile& file, std::uint32_t archive,
              const std::vector<LocalTensor>& local, bool experts, StateTable& table)
      : ranks_(ranks),
        file_(file),
        archive_(archive),
        local_(local),
        experts_(experts),
        table_(table) {}

  /// False: what lies there could not be matched with parameters.
  bool run(const Value& root) {
    // A chained optimizer (dense and expert parameters) stores a list of them.
    const bool list = root.kind() == Value::Kind::kList;
    const std::size_t count = list ? root.as_list().size() : 1;
    for (std::size_t c = 0; c < count; ++c) {
      if (list && root.as_list()[c].is_none()) continue;  // it has no parameters of this kind
      const auto params = share_of(local_, c, count, experts_);
      if (!params || !run_one(list ? root.as_list()[c] : root, *params)) return false;
    }
    return true;
  }

 private:
  bool run_one(const Value& root, const std::vector<const LocalTensor*>& params) {
    if (!root.is_dict()) return false;
    const Value* coalesced = root.find("buckets_coalesced");
    if (!coalesced || !(*coalesced == Value::boolean(true))) return false;
    std::vector<Buffers> all;
    for (const auto& [key, by_dtype] : root.as_dict()) {
      if (key.is_string()) continue;
      if (!key.is_int() || key.as_int() < 0 || !by_dtype.is_dict()) return false;
      for (const auto& [dtype, dict] : by_dtype.as_dict()) {
        const auto buffers = open(dict);
        if (!buffers) return false;
        all.push_back(*buffers);
        all.back().dtype = param_dtype(dtype);
        all.back().number = key.as_int();
      }
    }
    std::ranges::stable_sort(all, {}, &Buffers::number);
    std::set<std::pair<std::size_t, std::optional<DType>>> used;
    return std::ranges::all_of(all, [&](Buffers& buffers) {
      return find_chunk(buffers, params, used) && place(buffers, params);
    });
  }

  /// Buffers are numbered over the model chunks, one for each type that a chunk has.
  bool find_chunk(Buffers& buffers, const std::vector<const LocalTensor*>& params,
                  std::set<std::pair<std::size_t, std::optional<DType>>>& used) const {
    std::set<std::size_t> chunks;
    for (const LocalTensor* tensor : params)
      if (may_hold(buffers, *tensor)) chunks.insert(tensor->chunk);
    for (const std::size_t chunk : chunks) {
      if (!used.insert({chunk, buffers.dtype}).second) continue;
      buffers.chunk = chunk;
      return true;
    }
    return false;
  }

  bool may_hold(const Buffers& buffers, const LocalTensor& tensor) const {
    const DType dtype = stored(tensor).dtype;
    return !tensor.fqn.ends_with("_extra_state") && is_floating(dtype) &&
           (!buffers.dtype || dtype == *buffers.dtype);
  }

  std::optional<Buffers> open(const Value& dict) const {
    Buffers out{&dict, std::nullopt, 0, 0, 0};
    const Value* numel = dict.find("numel_unpadded");
    if (!numel || !numel->is_int()) return std::nullopt;
    out.numel = numel->as_int();
    for (const auto& [key, leaf] : kBuffers) {
      const Value* tensor = dict.find(key);
      if (!tensor || !tensor->is_tensor()) return std::nullopt;
      const Shape& shape = ranks_.tensor(archive_, tensor->tensor_index()).shape;
      if (shape.rank() != 1 || shape[0] != out.numel) return std::nullopt;
    }
    return out;
  }

  const ArchiveTensor& stored(const LocalTensor& tensor) const {
    return ranks_.tensor(file_.file, tensor.tensor);
  }

  /// Parameters that may lie in the buffers: all of its type, or the dense ones, or the experts.
  std::vector<std::vector<const LocalTensor*>> candidate_sets(
      const Buffers& buffers, const std::vector<const LocalTensor*>& params) const {
    std::vector<std::vector<const LocalTensor*>> sets(3);
    for (const LocalTensor* tensor : params) {
      if (tensor->chunk != buffers.chunk || !may_hold(buffers, *tensor)) continue;
      sets[0].push_back(tensor);
      sets[is_expert(tensor->fqn) ? 2 : 1].push_back(tensor);
    }
    if (sets[1].empty() || sets[2].empty()) sets.resize(1);
    return sets;
  }

  bool is_shared_embedding(const LocalTensor& tensor) const {
    if (tensor.tied_copy) return true;
    const bool tied = ranks_.args.boolean("untie_embeddings_and_output_weights") == false;
    return ranks_.grid.pp > 1 && tied && file_.rank.pp == 0 &&
           tensor.fqn.ends_with("word_embeddings.weight");
  }

  bool place(const Buffers& buffers, const std::vector<const LocalTensor*>& params) {
    std::optional<std::vector<std::pair<const LocalTensor*, std::int64_t>>> found;
    for (const auto& set : candidate_sets(buffers, params)) {
      std::vector<BucketParam> sizes;
      for (const LocalTensor* tensor : set)
        sizes.push_back({stored(*tensor).shape.numel(), is_shared_embedding(*tensor)});
      for (const auto& size : bucket_sizes(ranks_.args, ranks_.grid.size())) {
        for (const bool split : {true, false}) {
          const BucketLayout layout = bucket_layout(sizes, size, split);
          if (layout.numel_unpadded != buffers.numel) continue;
          std::vector<std::pair<const LocalTensor*, std::int64_t>> at;
          for (std::size_t i = 0; i < set.size(); ++i) at.emplace_back(set[i], layout.begin[i]);
          if (found && *found != at) return false;  // two layouts fit
          found = std::move(at);
        }
      }
    }
    if (!found) return false;
    for (const auto& [tensor, begin] : *found) {
      for (const auto& [key, leaf] : kBuffers) {
        const std::uint32_t buffer = buffers.dict->find(key)->tensor_index();
        table_.add_tensor(file_, tensor->fqn, std::string(leaf), tensor->fqn,
                          {archive_, buffer, begin, tensor->view.value_or(stored(*tensor).shape)});
      }
    }
    return true;
  }

  Ranks& ranks_;
  const RankFile& file_;
  std::uint32_t archive_;
  const std::vector<LocalTensor>& local_;
  bool experts_;
  StateTable& table_;
};

}  // namespace

std::vector<std::optional<std::int64_t>> bucket_sizes(const Args& args, std::int64_t ranks) {
  std::int64_t data_parallel = args.integer("data_parallel_size").value_or(0);
  if (data_parallel < 1)
    data_parallel = std::max<std::int64_t>(1, args.integer("world_size").value_or(ranks) / ranks);
  const std::int64_t usual =
      std::max(kLeastBucket, kBucketPerRank * std::min<std::int64_t>(data_parallel, 1 << 20));
  const std::optional<std::int64_t> stated = args.integer("ddp_bucket_size");
  const bool one = args.boolean("overlap_grad_reduce") == false;
  std::vector<std::optional<std::int64_t>> sizes = {std::nullopt, stated ? stated : usual};
  if (stated) sizes.push_back(usual);
  if (!one && args.known()) std::swap(sizes[0], sizes[1]);
  return sizes;
}

bool merge_buckets(Ranks& ranks, const std::vector<std::vector<LocalTensor>>& local,
                   const Path& base) {
  std::vector<std::uint32_t> archives;
  std::vector<std::size_t> of;
  for (std::size_t i = 0; i < ranks.files.size(); ++i) {
    const std::string path = ranks.files[i].rank.folder + "/" + std::string(kOptimizerFile);
    if (!ranks.directory.stat(path)) continue;
    archives.push_back(ranks.builder.open(path));
    of.push_back(i);
  }
  if (archives.empty()) return false;
  if (archives.size() != ranks.files.size()) {
    std::size_t lacking = 0;
    while (lacking < of.size() && of[lacking] == lacking) ++lacking;
    ranks.findings.error(codes::kMissingRank,
                         "the file is missing, other ranks have it: state of the optimizer",
                         ranks.files[lacking].rank.folder + "/" + std::string(kOptimizerFile));
  }
  StateTable table(ranks, base);
  const bool experts = has_experts(local);
  bool matched = true;
  for (std::size_t k = 0; k < archives.size() && matched; ++k)
    matched = RankBuckets(ranks, ranks.files[of[k]], archives[k], local[of[k]], experts, table)
                  .run(ranks.builder.archive(archives[k]).root);
  if (matched) {
    table.finish();
    return true;
  }
  ranks.findings.note(codes::kUnmatchedBuckets, "warning",
                      "buffers of the distributed optimizer could not be matched with parameters: "
                      "they are shown as they are and cannot be resharded",
                      ranks.builder.manifest().files[archives[0]].path, kOptimizer);
  for (std::size_t k = 0; k < archives.size(); ++k) {
    const RankFile& file = ranks.files[of[k]];
    Path path = {key_item("distrib_optim")};
    if (ranks.files.size() > 1)
      path.push_back(key_item(fmt::format("rank_{}", ranks.number(file.rank))));
    ranks.builder.add_state(archives[k], ranks.builder.archive(archives[k]).root, path);
  }
  return true;
}

}  // namespace tessera::megatron_torch
