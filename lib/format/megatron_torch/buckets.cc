// distrib_optim.pt -> state of whole parameters.
#include "lib/format/megatron_torch/buckets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "lib/format/megatron_torch/bucket_layout.h"
#include "lib/format/megatron_torch/id_match.h"
#include "lib/format/megatron_torch/odd_file.h"
#include "lib/format/megatron_torch/optim_merge.h"
#include "lib/format/megatron_torch/optim_parts.h"

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
  std::set<std::string, std::less<>> members = {};  // as recorded; empty: not said
  bool has(const LocalTensor& tensor) const {
    return members.empty() || members.contains(tensor.fqn);
  }
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

  /// Parameters whose state lies there.
  const std::set<std::string>& placed() const { return placed_; }
  /// Those that a record says have none.
  const std::set<std::string>& frozen() const { return frozen_; }

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
      if (may_hold(buffers, *tensor) && buffers.has(*tensor)) chunks.insert(tensor->chunk);
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
    if (const auto members = recorded_members(dict))
      out.members.insert(members->begin(), members->end());
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

  /// Parameters that may lie in the buffers: those recorded, else all of its type, or the dense
  /// ones, or the experts.
  std::vector<std::vector<const LocalTensor*>> candidate_sets(
      const Buffers& buffers, const std::vector<const LocalTensor*>& params) const {
    std::vector<std::vector<const LocalTensor*>> sets(3);
    for (const LocalTensor* tensor : params) {
      if (tensor->chunk != buffers.chunk || !may_hold(buffers, *tensor) || !buffers.has(*tensor))
        continue;
      sets[0].push_back(tensor);
      sets[is_expert(tensor->fqn) ? 2 : 1].push_back(tensor);
    }
    if (sets[1].empty() || sets[2].empty() || !buffers.members.empty()) sets.resize(1);
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
    for (const LocalTensor* tensor : params)
      if (tensor->chunk == buffers.chunk && may_hold(buffers, *tensor) && !buffers.has(*tensor))
        frozen_.insert(tensor->fqn);
    for (const auto& [tensor, begin] : *found) {
      placed_.insert(tensor->fqn);
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
  std::set<std::string> placed_, frozen_;
};

/// distrib_optim.pt of every rank that has one.
struct BucketFile {
  std::size_t rank = 0;  // in Ranks::files
  std::uint32_t archive = 0;
  std::set<std::string> placed = {}, frozen = {};
};

/// Opens the files that are there, and reports ranks whose file is missing or cannot be read.
class BucketFiles {
 public:
  explicit BucketFiles(Ranks& ranks) : ranks_(ranks) {}

  std::vector<BucketFile> open() {
    std::vector<BucketFile> out;
    std::vector<std::string> missing;
    for (std::size_t i = 0; i < ranks_.files.size(); ++i) {
      const std::string path = path_of(i);
      const auto info = ranks_.directory.stat(path);
      if (!info) {
        missing.push_back(ranks_.files[i].rank.folder);
        continue;
      }
      Status why;
      if (const auto archive = open_one(path, info->type, why)) {
        out.push_back({i, *archive});
      } else {
        ranks_.findings.error(Finding::kUnreadableFile,
                              unreadable_text("state of the optimizer", why), path);
      }
    }
    if (!missing.empty()) report_missing(missing);
    return out;
  }

 private:
  std::string path_of(std::size_t i) const {
    return ranks_.files[i].rank.folder + "/" + std::string(kOptimizerFile);
  }

  std::optional<std::uint32_t> open_one(const std::string& path, FileType type, Status& why) {
    if (const auto odd = odd_file(type)) {
      why = {Code::kCorrupt, std::string(*odd), {path, {}, {}, -1}, {}};
      if (!ranks_.findings.tolerate()) throw Error(std::move(why));
      return std::nullopt;
    }
    return ranks_.builder.try_open(path, why);
  }

  void report_missing(const std::vector<std::string>& folders) {
    const std::string path = folders[0] + "/" + std::string(kOptimizerFile);
    const bool all = folders.size() == ranks_.files.size();
    if (all && !expects_state()) return;
    const std::string what = fmt::format(
        "{} is missing in {}: the optimizer's state (moments and fp32 weights) of {} is lost",
        kOptimizerFile, fmt::join(folders, ", "),
        folders.size() == 1 ? "this rank" : fmt::format("these {} ranks", folders.size()));
    // Where no rank has it, it may have been left behind on purpose.
    if (all)
      return ranks_.findings.note(Finding::kMissingFile, Severity::kWarning, what, path,
                                  kOptimizer);
    ranks_.findings.error(Finding::kMissingFile, what, path);
  }

  /// The distributed optimizer keeps its groups in the model's file, without params and state.
  bool expects_state() const {
    return std::ranges::any_of(ranks_.files, [this](const RankFile& file) {
      const auto parts = take_apart(file, ranks_.root(file).find(kOptimizer));
      return std::ranges::any_of(parts, [](const RankOptimizer& o) {
        return o.groups && o.groups->kind() == Value::Kind::kList && !o.groups->as_list().empty() &&
               !o.state && std::ranges::none_of(o.groups->as_list(), [](const Value& group) {
                 return group.find("params") != nullptr;
               });
      });
    });
  }

  Ranks& ranks_;
};

/// A weight's name, as against buffers, which no optimizer knows: "weight", "layer_norm_bias".
bool is_weight(const std::string& fqn) {
  const std::string_view last = std::string_view(fqn).substr(fqn.rfind('.') + 1);
  return last.find("weight") != last.npos || last == "bias" || last == "layer_norm_bias";
}

/// Reports parameters of a rank whose state is neither in its file nor in that of another rank with
/// the same part: experts, or buckets, that are not there.
void report_lost_state(Ranks& ranks, const std::vector<std::vector<LocalTensor>>& local,
                       const std::vector<BucketFile>& files) {
  constexpr std::size_t kNamed = 3;
  std::map<std::int64_t, std::set<std::string_view>> held;  // by tensor-parallel rank
  for (const BucketFile& file : files)
    held[ranks.files[file.rank].rank.tp].insert(file.placed.begin(), file.placed.end());
  for (const BucketFile& file : files) {
    const GridRank& rank = ranks.files[file.rank].rank;
    const auto is_held = [&](const LocalTensor& tensor) {
      const bool own_alone = tensor.view && is_expert(tensor.fqn);  // packed: others hold others
      return file.placed.contains(tensor.fqn) || file.frozen.contains(tensor.fqn) ||
             (!own_alone && held[rank.tp].contains(tensor.fqn));
    };
    std::vector<std::string> lost;
    for (const LocalTensor& tensor : local[file.rank])
      if (is_floating(ranks.tensor(ranks.files[file.rank].file, tensor.tensor).dtype) &&
          is_weight(tensor.fqn) && !is_held(tensor))
        lost.push_back(tensor.fqn);
    if (lost.empty()) continue;
    const auto named = std::span(lost).first(std::min(lost.size(), kNamed));
    ranks.findings.error(
        Finding::kLost,
        fmt::format("it holds no state of {} of the {} tensors of {}, nor does another rank's: "
                    "lost are moments and fp32 weights of {}{}",
                    lost.size(), local[file.rank].size(), rank.folder, fmt::join(named, ", "),
                    lost.size() > kNamed ? ", ..." : ""),
        rank.folder + "/" + std::string(kOptimizerFile));
  }
}

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
  std::vector<BucketFile> files = BucketFiles(ranks).open();
  if (files.empty()) return false;
  StateTable table(ranks, base);
  const bool experts = has_experts(local);
  bool matched = true;
  for (BucketFile& file : files) {
    RankBuckets buckets(ranks, ranks.files[file.rank], file.archive, local[file.rank], experts,
                        table);
    matched = matched && buckets.run(ranks.builder.archive(file.archive).root);
    file.placed = buckets.placed();
    file.frozen = buckets.frozen();
  }
  if (matched) {
    report_lost_state(ranks, local, files);
    table.finish();
    return true;
  }
  ranks.findings.note(Finding::kUnmatchedBuckets, Severity::kWarning,
                      "buffers of the distributed optimizer could not be matched with parameters: "
                      "they are shown as they are and cannot be resharded",
                      ranks.builder.manifest().files[files[0].archive].path, kOptimizer);
  for (const BucketFile& file : files) {
    Path path = {key_item("distrib_optim")};
    std::optional<std::int64_t> rank;
    if (ranks.files.size() > 1) {
      rank = ranks.number(ranks.files[file.rank].rank);
      path.push_back(key_item(fmt::format("rank_{}", *rank)));
    }
    ranks.builder.add_state(file.archive, ranks.builder.archive(file.archive).root, path, rank);
  }
  return true;
}

}  // namespace tessera::megatron_torch
