#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string_view>

#include "lib/base/append.h"
#include "lib/encoding/pickle_memory.h"
#include "lib/format/value_policy.h"
#include "lib/ops/convert/base_folder.h"
#include "lib/ops/convert/conversion.h"
#include "lib/ops/convert/request.h"
#include "lib/ops/inspect/content_digests.h"
#include "lib/ops/open/sealed_directory.h"
#include "lib/ops/open/value_budget.h"
#include "lib/ops/seal/asset_names.h"
#include "lib/ops/verify/seal.h"
#include "lib/state/tensor_wrapper.h"
#include "lib/storage/linked_directory.h"

namespace tessera {
namespace {

constexpr std::uint64_t kDefaultMemory = std::uint64_t{1} << 30;

}  // namespace

Conversion::Conversion(FileSystem& fs, const ConvertOptions& options)
    : fs_(fs), options_(options), request_(options.target) {
  transfer_.memory_limit_bytes =
      options.memory_limit_bytes != 0
          ? options.memory_limit_bytes
          : std::min(kDefaultMemory, std::uint64_t{available_memory_bytes()} / 2);
  transfer_.threads = options.threads > 0 ? options.threads : available_cpus();
  transfer_.progress = options.progress;
  transfer_.cancel = options.cancel;
  read_.memory_limit_bytes = transfer_.memory_limit_bytes;
  read_.pickle_limit_bytes = options.memory_limit_bytes;
  read_.threads = transfer_.threads;
  read_.own = request_.own = options.own;
  read_.tolerate_damage = read_.guess_index = options.salvage;
}

void Conversion::prepare() {
  destination_ = resolve_destination(fs_, options_.destination);
  report_.destination = options_.destination;
  open_source();
  shape_state();
  plan_output();
  plan_assets();
  plan_sidecars();
  describe();
  preflight();
  if (options_.dry_run) check_room();
}

ConvertReport Conversion::run() {
  auto start = std::chrono::steady_clock::now();
  share_host();
  together([this] { prepare(); });
  check_same_plan();
  if (!options_.dry_run) {
    options_.ranks != nullptr ? write_shared() : write();
  }
  together([this] { track(); });
  report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::move(report_);
}

void Conversion::plan_output() {
  check_layout_globs();
  read_steps();
  if (!leaves_values_out()) require_printable(source_.manifest.state);
  if (driver_->capabilities().keeps_opaque && !leaves_values_out()) {
    for (std::string& name : keep_out_danger(source_.manifest, request_.opaque, report_.notes))
      report_.dropped.push_back(std::move(name));
    report_.balance.leave_out(source_.manifest, "");
  }
  if (!options_.delta_from.empty()) plan_delta();
  output_ = driver_->output_plan(source_.manifest, request_);
  output_.check(source_.manifest);
  TESSERA_CHECK(output_.single_file == request_.single_file);
  report_.balance.close(source_.manifest, output_);
  plan_.emplace(source_.manifest, output_);
  plan_hash_ =
      plan_hash(request_hash(fs_, options_, destination_), source_.manifest, output_, delta_sums_);
}

void Conversion::plan_assets() {
  const bool has_base = !options_.base.empty();
  if (!options_.copy_assets && !has_base) {
    if (request_.hf_preset && !output_.single_file)
      report_.notes.push_back(
          {Finding::kAsset, Severity::kInfo,
           "the result has no config.json and no tokenizer: --base-model MODEL, or "
           "--copy-assets, copies them",
           "", ""});
    if (!quantization_.empty()) note_unsaid_quantization();
    return;
  }
  if (output_.single_file)
    fail(Code::kInvalidArgument,
         fmt::format("{} needs DST to be a folder", has_base ? "--base-model" : "--copy-assets"));
  std::string from = has_base ? base_folder(fs_, options_.base) : options_.assets_directory;
  // Where `latest` leads into a folder of its own, a trainer's configuration lies beside `latest`.
  if (from.empty() && !source_.beside_folder.empty() && !source_.directory->stat("config.json"))
    from = source_.beside_folder;
  if (!from.empty()) {
    if (!fs_.stat(from))
      fail(Code::kNotFound, fmt::format("--copy-assets: there is no folder {}", printable(from)));
    asset_directory_ = storage::open_linked_directory(fs_, model_folder(fs_, from));
  }
  const Directory& directory = asset_directory_ ? *asset_directory_ : *source_.directory;
  std::vector<std::string> owned;
  for (const StoredFile& file : source_.manifest.files) owned.push_back(file.path);
  for (const OutputFile& file : output_.files) owned.push_back(file.path);
  assets_ = find_assets(directory, owned);
  check_assets(directory);
  fit_config(directory);
  for (const FileInfo& asset : assets_.copied) report_.assets.push_back(asset.name);
  for (const std::string& name : assets_.links) {
    report_.notes.push_back({Finding::kAsset, Severity::kWarning,
                             "not copied: it is a symbolic link; copy what it leads to", name, ""});
  }
  for (const std::string& name : assets_.others) {
    report_.notes.push_back(
        {Finding::kAsset, Severity::kInfo, "next to the checkpoint, not copied", name, ""});
  }
  note_missing_assets(directory);
}

/// Asked for and not there: loaders of the result would miss it.
void Conversion::note_missing_assets(const Directory& directory) {
  const bool none = assets_.copied.empty();
  const bool has_config = std::ranges::any_of(
      assets_.copied, [](const FileInfo& asset) { return asset.name == "config.json"; });
  if (!none && (has_config || !request_.hf_preset)) return;
  const std::string hint =
      options_.base.empty() ? "; --base-model MODEL copies those of the model" : "";
  report_.notes.push_back(
      {Finding::kAsset, Severity::kWarning,
       none ? fmt::format("no configuration, tokenizer or template file in {}: none was copied{}",
                          printable(directory.path()), hint)
            : fmt::format("no config.json in {}, which loaders of the result need{}",
                          printable(directory.path()), hint),
       "", ""});
}

/// Loaders know by config.json alone that weights are quantized.
void Conversion::note_unsaid_quantization() {
  report_.notes.push_back(
      {Finding::kAsset, Severity::kWarning,
       fmt::format("no config.json is written that says how the weights are quantized; loaders "
                   "want in it \"quantization_config\": {}",
                   quantization_),
       "", ""});
}

/// config.json says what the result has: the type of the weights, and whether they are quantized.
void Conversion::fit_config(const Directory& directory) {
  const std::optional<DType> type =
      options_.transform.dtype ? options_.transform.dtype : options_.transform.dequantize;
  if (type) rewrite_dtype(directory, assets_, torch_name(*type));
  const auto note = [this](std::string text, const std::string& file) {
    report_.notes.push_back({Finding::kAsset, Severity::kInfo, std::move(text), file, ""});
  };
  if (options_.transform.dequantize || !quantization_.empty())
    for (const std::string& name : drop_quantization(directory, assets_))
      note("not copied: it says how the source's weights are quantized", name);
  if (!quantization_.empty() && !add_quantization(directory, assets_, quantization_))
    note_unsaid_quantization();
  for (const auto& [name, rewritten] : assets_.rewritten)
    note("copied with what the result has: " + rewritten.change, name);
}

/// What we wrote ourselves is what its seal says, or it is refused; salvage leaves it out.
void Conversion::check_assets(const Directory& directory) {
  for (const std::string& path : missing_files(directory)) {
    if (!is_asset_name(path)) continue;
    const std::string why = fmt::format("the file is missing, {} lists it", seal_name(""));
    if (!options_.salvage)
      in_file(path, [&] {
        fail(Code::kCorrupt, why, "take it from another copy, or leave out --copy-assets");
      });
    report_.lost.push_back({path, why});
  }
  const std::optional<Seal> beside =
      asset_directory_ ? read_seal(directory, "") : std::optional<Seal>();
  const Seal* seal = asset_directory_ ? (beside ? &*beside : nullptr) : source_.seal.get();
  if (seal == nullptr) return;
  std::erase_if(assets_.copied, [&](const FileInfo& asset) {
    const SealedFile* sealed = seal->find(asset.name);
    if (sealed == nullptr) return false;
    const auto note =
        check_sealed_file(directory, asset.name, *sealed, nullptr, [](std::size_t) {});
    if (!note) return false;
    if (!options_.salvage) SealedDirectory::refuse(*note);
    report_.lost.push_back({asset.name, note->message});
    return true;
  });
}

void Conversion::describe() {
  for (const OutputFile& file : output_.files) {
    ConvertedFile& out = report_.files.emplace_back();
    out.path = path_of(file);
    out.size_bytes = file.size_bytes;
    for (std::uint64_t i = 0; i < file.segment_count; ++i) {
      const Segment& segment = output_.segments[file.first_segment + i];
      if (segment.kind != Segment::Kind::kTensor) continue;
      out.tensor_bytes += segment.length;
      ++out.tensors;
    }
  }
  for (const FileInfo& asset : assets_.copied) {
    report_.files.push_back({asset.name, asset.size_bytes, 0, 0});
  }
  for (const FileInfo& sidecar : sidecars_)
    report_.files.push_back({sidecar.name, sidecar.size_bytes, 0, 0});
  for (const ConvertedFile& file : report_.files) report_.output_bytes += file.size_bytes;
  report_.tensors = leaf_tensors(source_.manifest).size();
  report_.source_bytes = source_bytes();
  append(report_.notes, output_.notes);
  if (request_.values != KeepPolicy::kDrop) {
    if (driver_->capabilities().loses_dict_kinds) list_lost_kinds();
    if (driver_->capabilities().joins_value_dicts) list_joined_dicts();
  }
  Seal seal = make_seal();
  if (verifies()) {
    const auto add = [&](std::string name, std::uint32_t index) {
      seal.tensors.push_back({std::move(name), "", {}, ""});
      seal.tensors.back().shape.resize(
          static_cast<std::size_t>(source_.manifest.tensors[index].spec.shape.rank()));
    };
    for (std::uint32_t i : leaf_tensors(source_.manifest)) add(source_.manifest.tensors[i].name, i);
    for (const PartRow& row : part_rows(source_.manifest.state))
      add(source_.manifest.state.entries[row.entry].name + row.suffix, row.tensor);
  }
  report_.seal_bytes = seal_size_bound(seal);
  const Manifest& manifest = source_.manifest;
  report_.metadata_bytes =
      kept_blob_bytes_ + manifest.chunks.memory_bytes() + plan_->memory_bytes() +
      manifest.tensors.size() * (sizeof(StoredTensor) + 64) +
      output_.segments.size() * (sizeof(Segment) + 8) + output_.chunks.memory_bytes();
  for (const Bytes& bytes : manifest.inline_bytes) report_.metadata_bytes += bytes.size();
  report_.metadata_limit_bytes =
      pickle_memory_bytes(kMostPickleMemoryBytes, read_.pickle_limit_bytes);
  report_.staged_bytes_bound = staged_bytes_bound(transfer_);
  report_.peak_memory_bound = report_.metadata_bytes + report_.staged_bytes_bound;
}

/// Dicts of values that the target keeps as plain ones.
void Conversion::list_lost_kinds() {
  AppliedTransformation lost{"types", "", 0, {}};
  const bool top_alone = driver_->capabilities().keeps_containers;
  for (const auto& [name, type] : typed_containers(source_.manifest.state))
    if (const std::string words = dict_words(type);
        type.kind() != Value::Kind::kDict && (name.empty() || !top_alone))
      lost.changes.push_back(fmt::format("{}: {} -> dict", name.empty() ? "(top)" : printable(name),
                                         words.substr(0, words.find_first_of(":("))));
  if (lost.changes.empty()) return;
  lost.detail = fmt::format("{} dict{} of values written as plain dict{} ({})", lost.changes.size(),
                            lost.changes.size() == 1 ? "" : "s",
                            lost.changes.size() == 1 ? "" : "s", lost.changes[0]);
  report_.transformations.push_back(std::move(lost));
}

/// Dicts of values at the top, which readers of the target do not enter.
void Conversion::list_joined_dicts() {
  const StateDict& state = source_.manifest.state;
  const Roles roles = find_roles(state);
  std::map<std::string_view, bool> joined;  // by key at the top: all below it are values
  for (std::size_t i = 0; i < state.entries.size(); ++i) {
    const StateEntry& entry = state.entries[i];
    if (entry.path.size() < 2 || entry.path[0].kind != PathItem::Kind::kKey) continue;
    const bool is_value =
        roles.entries[i].role != Role::kOptimGroup && !entry.value.holds_tensors();
    const auto [known, is_new] = joined.try_emplace(entry.path[0].key, is_value);
    known->second = known->second && is_value;
  }
  AppliedTransformation done{"values", "", 0, {}};
  for (const auto& [key, is_joined] : joined)
    if (is_joined) done.changes.push_back(fmt::format("{0}.* -> {0}", printable(key)));
  if (done.changes.empty()) return;
  done.detail =
      fmt::format("{} dict{} of values, each one value to readers of {} ({})", done.changes.size(),
                  done.changes.size() == 1 ? "" : "s", driver_->id(), done.changes[0]);
  report_.transformations.push_back(std::move(done));
}

/// When writing, asked once the stage is open: what an interrupted run left there takes no room
/// any more, and when resuming has its room already.
void Conversion::check_room(std::uint64_t staged_bytes) {
  const std::string parent = existing_parent(fs_, destination_);
  report_.free_bytes = fs_.free_bytes(parent);
  std::uint64_t needed = report_.output_bytes + report_.seal_bytes;
  needed -= std::min(needed, staged_bytes);
  const bool unknown = options_.resume && options_.dry_run;  // the stage is not looked for
  if (unknown || needed <= report_.free_bytes) return;
  fail(Code::kResourceExhausted,
       fmt::format("the result takes {} bytes{}, {} are free at {}", needed,
                   staged_bytes > 0 ? " more" : "", report_.free_bytes, parent),
       "choose another DST or make room");
}

void Conversion::preflight() {
  if (auto old = fs_.stat(destination_)) {
    if (old->type != FileType::kDirectory) {
      report_.replaced_bytes = old->size_bytes;
    } else {
      for (const FileInfo& entry : fs_.open_directory(destination_)->list()) {
        report_.replaced_bytes += entry.size_bytes;
      }
    }
  }
  const std::uint64_t most = coded_bytes_bound(transfer_);
  for (std::size_t i = 0; i < plan_->tensor_count(); ++i) {
    const StoredTensor& tensor = source_.manifest.tensors[plan_->tensor(i)];
    for (std::uint32_t c : plan_->sources(i)) {
      if (source_.manifest.source(tensor, c).kind != Source::Kind::kCoded) continue;
      const std::uint64_t needed = coded_bytes_needed(source_.manifest, tensor, c);
      if (needed <= most) continue;
      in_tensor(tensor.name, [&] {
        fail(Code::kResourceExhausted,
             fmt::format("decoding a compressed item takes {} bytes, {} of the memory limit of {} "
                         "are for such items",
                         needed, most, transfer_.memory_limit_bytes),
             "raise --mem-limit");
      });
    }
  }
  if (report_.peak_memory_bound > available_memory_bytes()) {
    fail(
        Code::kResourceExhausted,
        fmt::format("{} bytes of memory may be needed ({} for tables, {} staged), {} are available",
                    report_.peak_memory_bound, report_.metadata_bytes, report_.staged_bytes_bound,
                    available_memory_bytes()),
        "lower --mem-limit");
  }
}

ConvertReport convert(FileSystem& fs, const ConvertOptions& options) {
  return Conversion(fs, options).run();
}

std::string kept_stage(const FileSystem& fs, const ConvertOptions& options) {
  try {
    std::string destination = resolve_destination(fs, options.destination);
    std::size_t slash = destination.find_last_of('/');
    std::string stage =
        fmt::format("{}/.{}.tmp-{}", destination.substr(0, slash), destination.substr(slash + 1),
                    request_hash(fs, options, destination));
    std::optional<FileInfo> info = fs.stat(stage);
    return info && info->type == FileType::kDirectory ? stage : std::string();
  } catch (const Error&) {
    return {};
  }
}

}  // namespace tessera
