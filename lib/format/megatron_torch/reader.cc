// The rank folders of one iteration -> Manifest.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/megatron_torch.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lib/format/findings.h"
#include "lib/format/megatron_torch/model_merge.h"
#include "lib/format/megatron_torch/odd_file.h"
#include "lib/format/megatron_torch/optim_merge.h"
#include "lib/format/megatron_torch/parts.h"
#include "lib/format/megatron_torch/rank_checks.h"
#include "lib/format/megatron_torch/ranks.h"
#include "lib/format/megatron_torch/target_cut.h"
#include "lib/format/torch_files/archive_names.h"

namespace tessera::megatron_torch {
namespace {

/// Before 2.0 the rows of QKV were ordered otherwise.
constexpr double kOldestVersion = 2.0;

std::vector<std::string> model_names(const Value& root) {
  std::vector<std::string> names;
  for (const std::string& key : model_keys(root)) {
    ValueBudget budget(kMaxLeaves);
    const Value* model = root.find(key);
    if (!model->is_dict()) continue;
    for (const StateEntry& entry : flatten(*model, budget).entries) names.push_back(entry.name);
  }
  return names;
}

bool holds_model(const Value& root) {
  const std::vector<std::string> keys = model_keys(root);
  return !keys.empty() && std::ranges::all_of(keys, [&root](const std::string& key) {
    const Value* model = root.find(key);
    return model != nullptr && model->is_dict();
  });
}

/// The end of the model lies in its first stage: then there is one stage, and the numbers are
/// expert-parallel ranks.
bool holds_end(const Value& root) {
  return std::ranges::any_of(model_names(root), [](const std::string& name) {
    return !layer_name(name) && (name.find("final_layernorm") != std::string::npos ||
                                 name.find("final_norm") != std::string::npos);
  });
}

class Reader {
 public:
  Reader(const Place& place, const ReadOptions& options)
      : directory_(*place.directory),
        options_(options),
        builder_(directory_, options),
        findings_(options.tolerate_damage, builder_.manifest().notes),
        ranks_{directory_, builder_, findings_, {},
               {},         {},       false,     options.own.get(kAssumePlainFlag)} {}

  Manifest read() {
    open_files();
    check_version();
    find_gates();
    ModelMerge model(ranks_);
    model.run();
    if (!is_optimizer_apart()) merge_optimizer(ranks_, model.local(), model.names());
    add_rest();
    report_uncompared();
    Manifest& manifest = builder_.manifest();
    manifest.world_size = ranks_.grid.size();
    manifest.world_size_source = fmt::format("{} folders of ranks", ranks_.grid.size());
    return builder_.finish("megatron-torch", dialect());
  }

 private:
  void open_files() {
    std::vector<RankFolder> folders = find_rank_folders(directory_);
    if (folders.empty()) fail(Code::kUnsupported, "no folder mp_rank_XX lies in it");
    std::vector<RankFolder> hollow;  // of ranks that lost their file
    std::map<std::string, std::uint32_t> opened;
    std::erase_if(folders, [&](const RankFolder& folder) {
      const auto file = open_folder(folder);
      if (file) opened[folder.name] = *file;
      if (!file) hollow.push_back(folder);
      return !file;
    });
    if (folders.empty() && !unreadable_.empty()) throw Error(unreadable_.begin()->second);
    if (folders.empty())
      fail(Code::kCorrupt, fmt::format("no {} lies in its folders of ranks", kModelFile));
    std::vector<RankRoot> stored;
    for (const RankFolder& folder : folders)
      stored.push_back({{0, 0, 0, folder.name}, &builder_.archive(opened[folder.name]).root});
    check_args(stored, findings_);
    const Value& first = builder_.archive(opened[folders[0].name]).root;
    if (const Value* args = first.find("args")) ranks_.args = Args(*args);
    ranks_.grid = make_grid(folders, sizes(), single_is_expert(folders, first), hollow);
    for (const GridRank& rank : ranks_.grid.present)
      ranks_.files.push_back(
          {rank, rank.folder + "/" + std::string(kModelFile), opened[rank.folder]});
    std::vector<RankRoot> roots;
    for (const RankFile& file : ranks_.files) roots.push_back({file.rank, &ranks_.root(file)});
    check_order(roots, findings_);
    report_copies();
    // Ranks are fewer then than tp times ep, and none of them is missing.
    check_expert_tensor_parallel(ranks_.args, ranks_.grid.tp, ranks_.grid.ep > 1,
                                 Code::kUnsupported);
    for (const GridRank& rank : ranks_.grid.missing) report_missing(rank);
  }

  /// Files that are equal and were saved by one rank, as args.rank says. (Without that, ranks may
  /// well hold the same: copies of what nothing cuts.)
  bool are_copies(const RankFile& a, const RankFile& b) const {
    const auto saved_by = [this](const RankFile& file) -> std::optional<std::int64_t> {
      const Value* args = builder_.archive(file.file).root.find("args");
      return args ? Args(*args).integer("rank") : std::nullopt;
    };
    return saved_by(a) && saved_by(a) == saved_by(b) &&
           is_same_archive(builder_.archive(a.file), builder_.archive(b.file));
  }
  void report_copies() {
    for (std::size_t i = 1; i < ranks_.files.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        const RankFile &a = ranks_.files[j], &b = ranks_.files[i];
        if (!are_copies(a, b)) continue;
        return findings_.error(
            Finding::kOtherRanksFile,
            fmt::format("it and {} are the same bytes: one rank's file was copied over another's",
                        printable(a.path)),
            b.path);
      }
  }

  /// A layer-wise optimizer lies in files of data-parallel ranks, each of which has the state of some
  /// parameters; that beside the model is the first rank's part alone.
  bool is_optimizer_apart() {
    std::size_t files = 0;
    for (const RankFile& file : ranks_.files)
      for (const FileInfo& info : directory_.list(file.rank.folder))
        files += info.name.starts_with(kLayerWiseFile) ? 1 : 0;
    if (files == 0) return false;
    builder_.manifest().provenance[std::string(kLayerWiseProvenance)] =
        fmt::format("{} files", files);
    findings_.note(
        Finding::kRelatedState, Severity::kWarning,
        fmt::format("the optimizer is layer-wise: its state lies in {} files {}<N>.pt of "
                    "data-parallel ranks, which are not read",
                    files, kLayerWiseFile),
        "", "");
    return true;
  }

  /// nullopt: it holds no model's file, or one that cannot be read (unreadable_).
  std::optional<std::uint32_t> open_folder(const RankFolder& folder) {
    const std::string path = folder.name + "/" + std::string(kModelFile);
    const auto info = directory_.stat(path);
    if (!info) return std::nullopt;
    Status why{Code::kCorrupt, {}, {path, {}, {}, -1}, {}};
    if (const auto odd = odd_file(info->type)) {
      why.message = *odd;
    } else if (const auto file = builder_.try_open(path, why)) {
      const Value& root = builder_.archive(*file).root;
      if (root.is_dict() && (!findings_.tolerate() || holds_model(root))) return file;
      why.message = root.is_dict() ? "it holds no model" : "its top object is no dict";
    }
    if (!findings_.tolerate()) throw Error(std::move(why));
    unreadable_.emplace(folder.name, std::move(why));
    return std::nullopt;
  }

  /// Reports a rank without a file, or with something else in its place.
  void report_missing(const GridRank& rank) {
    const std::string path = rank.folder + "/" + std::string(kModelFile);
    const std::string whose =
        fmt::format("tensor-parallel rank {}, stage {}, expert rank {}", rank.tp, rank.pp, rank.ep);
    if (const auto why = unreadable_.find(rank.folder); why != unreadable_.end())
      return findings_.error(Finding::kUnreadableFile, unreadable_text(whose, why->second), path);
    const auto folder = directory_.stat(rank.folder);
    const auto odd = folder ? odd_file(folder->type, FileType::kDirectory) : std::nullopt;
    if (odd)
      findings_.error(Finding::kMissingFile, fmt::format("{}: {}", whose, *odd), rank.folder);
    else
      findings_.error(Finding::kMissingFile, fmt::format("the file is missing: {}", whose), path);
  }

  /// Parameters that are views of one buffer have no CRC of their own.
  void report_uncompared() {
    if (ranks_.uncompared.empty()) return;
    const std::size_t count = ranks_.uncompared.size();
    findings_.note(Finding::kUncomparedReplicas, Severity::kInfo,
                   fmt::format("{} tensor{} that several ranks hold alike lie{} in buffers with "
                               "others: the first rank's is taken; ckpt-inspect verify, and "
                               "--verify here, compare the copies byte by byte",
                               count, count == 1 ? "" : "s", count == 1 ? "s" : ""),
                   "", *ranks_.uncompared.begin());
  }

  GridSizes sizes() const {
    if (!ranks_.args.is_namespace()) return {};
    return {ranks_.args.integer("tensor_model_parallel_size"),
            ranks_.args.integer("pipeline_model_parallel_size"),
            ranks_.args.integer("expert_model_parallel_size")};
  }

  bool single_is_expert(const std::vector<RankFolder>& folders, const Value& first) const {
    if (folders[0].rest.size() != 1) return false;
    if (const auto stages = ranks_.args.integer("pipeline_model_parallel_size");
        stages && ranks_.args.is_namespace())
      return *stages == 1;
    const bool several = std::ranges::any_of(
        folders, [&](const RankFolder& folder) { return folder.rest != folders[0].rest; });
    return several && folders[0].rest[0] == 0 && holds_end(first);
  }

  void check_version() const {
    const Value& root = ranks_.root(ranks_.files[0]);
    const Value* stated = root.find("checkpoint_version");
    const double version = stated && stated->is_number() ? stated->as_real() : 0;
    if (version >= kOldestVersion || options_.list_globals) return;
    for (const std::string& name : model_names(root)) {
      if (name.find("query_key_value") == std::string::npos) continue;
      in_tensor(name, [&] {
        fail(Code::kUnsupported,
             fmt::format("checkpoint_version {} orders the rows of query, key and value otherwise; "
                         "2.0 and newer are read",
                         version),
             "load and save it once with Megatron-LM");
      });
    }
  }

  void find_gates() {
    std::map<std::string, Shape> weights;
    for (const RankFile& file : ranks_.files) {
      for (const std::string& key : model_keys(ranks_.root(file))) {
        ValueBudget budget(kMaxLeaves);
        const Value* model = ranks_.root(file).find(key);
        if (!model->is_dict() || ranks_.args.gated()) continue;
        for (const StateEntry& entry : flatten(*model, budget).entries)
          if (entry.value.is_tensor())
            weights.emplace(entry.name, ranks_.tensor(file.file, entry.value.tensor_index()).shape);
      }
      if (!weights.empty()) break;  // one rank is enough
    }
    ranks_.gated = ranks_.args.gated().value_or(gated_by_shapes(weights));
  }

  /// Everything but model, optimizer and args: one entry where the ranks agree.
  void add_rest() {
    std::vector<std::string> keys;
    std::set<std::string> known = {std::string(kOptimizer)};
    for (const RankFile& file : ranks_.files)
      for (const std::string& key : model_keys(ranks_.root(file))) known.insert(key);
    std::map<std::string_view, std::vector<const Value*>> of_key;  // one for each file
    for (std::size_t i = 0; i < ranks_.files.size(); ++i) {
      for (const auto& [key, value] : ranks_.root(ranks_.files[i]).as_dict()) {
        if (!key.is_string())
          in_file(ranks_.files[i].path,
                  [] { fail(Code::kCorrupt, "a key at its top is no string"); });
        if (known.insert(key.as_string()).second) keys.push_back(key.as_string());
        auto& values = of_key[key.as_string()];
        values.resize(ranks_.files.size());
        if (values[i] == nullptr) values[i] = &value;
      }
    }
    for (const std::string& key : keys) {
      const Path path = {key_item(key)};
      const std::vector<const Value*>& values = of_key.at(key);
      // They hold the writer's own rank, which is no part of the state.
      if (key == "args" && values[0]) {
        builder_.add_value(ranks_.files[0].file, path, *values[0]);
        continue;
      }
      add_per_rank(ranks_, path, values);
    }
  }

  std::string dialect() const {
    std::string text = fmt::format("Megatron-LM, tensor parallel {}, pipeline parallel {}",
                                   ranks_.grid.tp, ranks_.grid.pp);
    if (ranks_.grid.ep > 1) text += fmt::format(", expert parallel {}", ranks_.grid.ep);
    return text;
  }

  const Directory& directory_;
  const ReadOptions& options_;
  ArchiveManifestBuilder builder_;
  Findings findings_;
  Ranks ranks_;
  std::map<std::string, Status> unreadable_;  // by folder: why its file is lost
};

}  // namespace

Manifest read_manifest(const Place& place, const ReadOptions& options) {
  return Reader(place, options).read();
}

}  // namespace tessera::megatron_torch
