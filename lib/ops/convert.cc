#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/base/text.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/seal.h>
#include <tessera/reshard/executor.h>
#include <tessera/reshard/plan.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/roles.h>
#include <tessera/state/sharding_rule.h>
#include <tessera/state/state_values.h>
#include <tessera/storage/stage.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <chrono>

#include "lib/ops/assets.h"
#include "lib/ops/convert_request.h"
#include "lib/ops/convert_verify.h"
#include "lib/ops/flat_guard.h"
#include "lib/ops/rank_state.h"
#include "lib/ops/salvage.h"
#include "lib/ops/tracker.h"

namespace tessera {

namespace {

constexpr std::string_view kTool = "tessera 0.1.0";
constexpr std::uint64_t kDefaultMemory = std::uint64_t{1} << 30;

/// Thrown inside prove() to stop publishing when --verify found a difference; never leaves
/// convert().
struct VerifyFailed {};

class Conversion {
 public:
  Conversion(FileSystem& fs, const ConvertOptions& options)
      : fs_(fs), options_(options), request_(options.target) {
    transfer_.memory_limit_bytes =
        options.memory_limit_bytes != 0
            ? options.memory_limit_bytes
            : std::min(kDefaultMemory, std::uint64_t{available_memory_bytes()} / 2);
    transfer_.threads = options.threads > 0 ? options.threads : available_cpus();
    transfer_.progress = options.progress;
    transfer_.cancel = options.cancel;
    read_.memory_limit_bytes = transfer_.memory_limit_bytes;
    read_.threads = transfer_.threads;
    read_.flat_layout = options.flat_layout;
    read_.tolerate_damage = options.salvage;
  }

  ConvertReport run();

 private:
  void open_source();
  void edit_optimizers();
  void take_model_only();
  void shape_state();
  void transform();
  void check_layout_globs() const;
  void read_steps();
  void plan_output();
  void plan_assets();
  void describe();
  void preflight();
  void check_room();
  void write();
  void track();
  void write_to(Stage& stage);
  void prove(Stage& stage, Seal& seal);
  void check_source_unchanged() const;
  void verify(Stage& stage, Seal& seal);
  std::unique_ptr<Stage> open_stage() const;
  Seal make_seal() const;
  std::string result_name() const {
    return destination_.substr(destination_.find_last_of('/') + 1);
  }
  std::string path_of(const OutputFile& file) const {
    return output_.single_file ? result_name() : file.path;
  }

  FileSystem& fs_;
  const ConvertOptions& options_;
  TargetRequest request_;
  TransferOptions transfer_;
  ReadOptions read_;
  std::string destination_;
  OpenedCheckpoint source_;
  const FormatDriver* driver_ = nullptr;
  OutputPlan output_;
  std::optional<Plan> plan_;
  std::unique_ptr<Directory> asset_directory_;
  AssetList assets_;
  std::string plan_hash_;
  std::vector<SealedFile> asset_sums_;
  TransferResult moved_;
  VerifyProof proof_;
  ConvertReport report_;
};

ConvertReport Conversion::run() {
  auto start = std::chrono::steady_clock::now();
  destination_ = resolve_destination(fs_, options_.destination);
  report_.destination = options_.destination;
  open_source();
  shape_state();
  plan_output();
  plan_assets();
  describe();
  preflight();
  if (options_.dry_run) {
    check_room();
  } else {
    write();
  }
  track();
  report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::move(report_);
}

void Conversion::open_source() {
  OpenOptions open;
  open.from = options_.from;
  const bool edits = options_.prefer_master || options_.optim_keys != OptimKeys::kKeep;
  open.selection = options_.selection;
  if (edits) {  // the rest of the selection follows
    open.selection = {};
    open.selection.root = options_.selection.root;
  }
  open.selection.state_follows = true;
  open.read = read_;
  source_ = open_checkpoint(fs_, options_.source, open);
  check_apart(fs_.canonical(source_.path), destination_);
  check_not_a_part(fs_, source_, destination_);
  report_.source = source_.display;
  report_.from = source_.driver->id();
  driver_ = &resolve_target(options_, source_.driver->id(), request_);
  report_.to = driver_->id();
  report_.notes = source_.notes;
  report_.notes.insert(report_.notes.end(), source_.manifest.notes.begin(),
                       source_.manifest.notes.end());
  if (fs_.stat(destination_) && !options_.force) {
    fail(Code::kAlreadyExists, fmt::format("{} exists", options_.destination),
         "choose another DST, or replace it with --force");
  }
  check_replaceable(fs_, destination_);
  if (edits) edit_optimizers();
}

void Conversion::edit_optimizers() {
  Manifest& manifest = source_.manifest;
  if (options_.prefer_master) {
    std::vector<Note> notes = prefer_masters(manifest);
    report_.notes.insert(report_.notes.end(), notes.begin(), notes.end());
  }
  std::vector<Note> notes = rekey_optimizers(manifest, options_.optim_keys);
  report_.notes.insert(report_.notes.end(), notes.begin(), notes.end());
  Selection rest = options_.selection;
  rest.root.clear();
  rest.state_follows = true;
  apply_selection(manifest, rest);
}

/// --to hf: the model alone, without the key it stands under.
void Conversion::take_model_only() {
  Manifest& manifest = source_.manifest;
  Roles roles = find_roles(manifest.state);
  if (roles.model_roots.size() > 1) {
    fail(Code::kUnsupported,
         fmt::format("there are several models: {}", fmt::join(roles.model_roots, ", ")),
         "choose one with --root");
  }
  if (!options_.selection.only) {
    Selection model;
    model.only = Part::kModel;
    apply_selection(manifest, model);
  }
  if (!roles.model_roots.empty() && !roles.model_roots[0].empty()) {
    Selection root;
    root.root = roles.model_roots[0];
    apply_selection(manifest, root);
  }
}

void Conversion::shape_state() {
  if (options_.salvage) {
    report_.lost = salvage(source_, read_, transfer_);
  } else {
    source_.locate_all(read_);
  }
  expand_state_values(source_.manifest);
  if (driver_->capabilities().groups_optimizers) {
    std::vector<Note> notes = group_optimizers(source_.manifest);
    report_.notes.insert(report_.notes.end(), notes.begin(), notes.end());
  }
  if (request_.hf_preset) {
    refuse_flat_parameters(source_.manifest);
    take_model_only();
  }
  std::optional<std::int64_t> world_size = request_.world_size;
  if (request_.mesh) world_size = request_.mesh->world_size();
  if (driver_->capabilities().many_ranks) report_.world_size = world_size.value_or(1);
  std::vector<std::string> dropped =
      apply_rank_state(source_.manifest, options_.rank_state, world_size);
  report_.dropped.insert(report_.dropped.end(), dropped.begin(), dropped.end());
  transform();
}

void Conversion::transform() {
  if (AppliedTransformation renamed = apply_renames(source_.manifest, options_.names);
      renamed.tensors > 0) {
    report_.transformations.push_back(std::move(renamed));
  }
  TransformOutcome done =
      apply_transformations(source_, options_.transform, request_.hf_preset, transfer_);
  for (const auto& [name, kept] : done.aliases) report_.dropped.push_back(name);
  request_.aliases = std::move(done.aliases);
  report_.notes.insert(report_.notes.end(), done.notes.begin(), done.notes.end());
  report_.dtypes = std::move(done.dtypes);
  report_.transformations.insert(report_.transformations.end(),
                                 std::make_move_iterator(done.applied.begin()),
                                 std::make_move_iterator(done.applied.end()));
}

/// Steps of optimizers, for formats that keep one for many parameters.
void Conversion::read_steps() {
  if (!driver_->capabilities().needs_steps) return;
  const Manifest& manifest = source_.manifest;
  const Roles roles = find_roles(manifest.state);
  const TensorReader reader(manifest, *source_.directory, transfer_);
  for (std::size_t i = 0; i < manifest.state.entries.size(); ++i) {
    const Value& value = manifest.state.entries[i].value;
    if (roles.entries[i].role != Role::kOptimState || !value.is_tensor()) continue;
    const std::uint32_t index = value.tensor_index();
    const TensorSpec& spec = manifest.tensors[index].spec;
    if (spec.shape.rank() != 0 || !is_castable(spec.dtype)) continue;
    Bytes bytes(static_cast<std::size_t>(element_bytes(spec.dtype)));
    reader.read(index, 0, 1, bytes);
    double number = 0;
    to_double(spec.dtype, bytes, {&number, 1});
    request_.steps.emplace_back(index, number);
  }
  std::ranges::sort(request_.steps);
}

/// Globs of the layout that match no tensor are typing errors. By the names of the result.
void Conversion::check_layout_globs() const {
  std::vector<std::string_view> names;
  for (std::uint32_t i : leaf_tensors(source_.manifest))
    names.push_back(source_.manifest.tensors[i].name);
  const auto check = [&names](std::string_view flag, const std::string& glob) {
    if (std::ranges::any_of(names, [&](auto name) { return glob_match(glob, name); })) return;
    const std::string near = nearest(glob, names);
    fail(Code::kInvalidArgument, fmt::format("{} \"{}\" matches no tensor", flag, printable(glob)),
         near.empty() ? "ckpt-inspect ls shows the names"
                      : fmt::format("did you mean \"{}\"?", near));
  };
  for (const auto& [glob, placements] : request_.placements) check("--placements", glob);
  for (const std::string& glob : request_.replicate) check("--replicate", glob);
}

void Conversion::plan_output() {
  check_layout_globs();
  if (request_.zero_stage > 0 && !driver_->id().starts_with("deepspeed-")) {
    fail(Code::kInvalidArgument,
         fmt::format("--zero-stage is for deepspeed-zero and deepspeed-universal, not {}",
                     driver_->id()));
  }
  read_steps();
  output_ = driver_->output_plan(source_.manifest, request_);
  output_.check(source_.manifest);
  TESSERA_CHECK(output_.single_file == request_.single_file);
  plan_.emplace(source_.manifest, output_);
  plan_hash_ = plan_hash(request_hash(fs_, options_, destination_), source_.manifest, output_);
}

void Conversion::plan_assets() {
  if (!options_.copy_assets) return;
  if (output_.single_file) {
    fail(Code::kInvalidArgument, "--copy-assets needs DST to be a folder");
  }
  asset_directory_ =
      options_.assets_directory.empty() ? nullptr : fs_.open_directory(options_.assets_directory);
  const Directory& directory = asset_directory_ ? *asset_directory_ : *source_.directory;
  std::vector<std::string> owned;
  for (const StoredFile& file : source_.manifest.files) owned.push_back(file.path);
  for (const OutputFile& file : output_.files) owned.push_back(file.path);
  assets_ = find_assets(directory, owned);
  for (const FileInfo& asset : assets_.copied) report_.assets.push_back(asset.name);
  for (const std::string& name : assets_.others) {
    report_.notes.push_back({"ASSET", "info", "beside the checkpoint, not copied", name, ""});
  }
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
  for (const ConvertedFile& file : report_.files) report_.output_bytes += file.size_bytes;
  report_.tensors = leaf_tensors(source_.manifest).size();
  report_.source_bytes = plan_->source_bytes();
  report_.notes.insert(report_.notes.end(), output_.notes.begin(), output_.notes.end());
  Seal seal = make_seal();
  if (options_.verify) {
    for (std::uint32_t i : leaf_tensors(source_.manifest)) {
      const StoredTensor& tensor = source_.manifest.tensors[i];
      seal.tensors.push_back({tensor.name, "", {}, ""});
      seal.tensors.back().shape.resize(static_cast<std::size_t>(tensor.spec.shape.rank()));
    }
  }
  report_.seal_bytes = seal_size_bound(seal);
  const Manifest& manifest = source_.manifest;
  report_.metadata_bytes = manifest.chunks.memory_bytes() + plan_->memory_bytes() +
                           manifest.tensors.size() * (sizeof(StoredTensor) + 64) +
                           output_.segments.size() * (sizeof(Segment) + 8) +
                           output_.chunks.size() * (sizeof(Chunk) + 64);
  for (const Bytes& bytes : manifest.inline_bytes) report_.metadata_bytes += bytes.size();
  report_.staged_bytes_bound = staged_bytes_bound(transfer_);
  report_.peak_memory_bound = report_.metadata_bytes + report_.staged_bytes_bound;
}

/// When writing, asked once the stage is open: what an interrupted run left there takes no room
/// any more.
void Conversion::check_room() {
  std::string parent = destination_.substr(0, destination_.find_last_of('/'));
  report_.free_bytes = fs_.free_bytes(parent.empty() ? "/" : parent);
  std::uint64_t needed = report_.output_bytes + report_.seal_bytes;
  if (options_.resume || needed <= report_.free_bytes) return;
  fail(Code::kResourceExhausted,
       fmt::format("the result takes {} bytes, {} are free at {}", needed, report_.free_bytes,
                   parent),
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

std::unique_ptr<Stage> Conversion::open_stage() const {
  StageOptions stage;
  stage.force = options_.force;
  stage.resume = options_.resume;
  stage.single_file = output_.single_file;
  return Stage::open(fs_, destination_, plan_hash_, stage);
}

Seal Conversion::make_seal() const {
  Seal seal;
  seal.format = driver_->id();
  seal.tool = kTool;
  seal.source_path = source_.display;
  seal.source_format = source_.driver->id();
  seal.source_tensors = leaf_tensors(source_.manifest).size();
  seal.source_bytes = plan_->source_bytes();
  for (std::size_t i = 0; i < output_.files.size(); ++i) {
    SealedFile file{path_of(output_.files[i]), output_.files[i].size_bytes, {}};
    if (i < moved_.crc32_per_mib.size()) file.crc32_per_mib = moved_.crc32_per_mib[i];
    seal.files.push_back(std::move(file));
  }
  seal.files.insert(seal.files.end(), asset_sums_.begin(), asset_sums_.end());
  std::vector<bool> sharded = sharded_tensors(source_.manifest, request_.replicate);
  for (std::size_t i = 0; i < sharded.size(); ++i) {
    const StoredTensor& tensor = source_.manifest.tensors[i];
    if (sharded[i] && !tensor.embedded) seal.sharded.push_back(tensor.name);
  }
  return seal;
}

void Conversion::write() {
  std::unique_ptr<Stage> stage = open_stage();
  try {
    check_room();
    write_to(*stage);
  } catch (const VerifyFailed&) {
    stage->discard();
  } catch (const Error& error) {
    if (error.code() == Code::kCancelled && options_.keep_when_cancelled) {
      stage->flush_journal();
      stage->keep();
    } else {
      stage->discard();
    }
    throw;
  } catch (...) {
    stage->discard();
    throw;
  }
}

/// Megatron's pointer beside the result, once the result is whole.
void Conversion::track() {
  if (!report_.published && !options_.dry_run) return;
  const auto tracker = Tracker::of(driver_->id(), destination_);
  if (!tracker) return;
  report_.notes.insert(report_.notes.begin(),
                       options_.dry_run ? tracker->plan(fs_) : tracker->publish(fs_));
}

void Conversion::write_to(Stage& stage) {
  moved_ = transfer(source_.manifest, *source_.directory, output_, *plan_, fs_, stage, transfer_);
  const Directory& beside = asset_directory_ ? *asset_directory_ : *source_.directory;
  for (const FileInfo& asset : assets_.copied) {
    asset_sums_.push_back(copy_asset(beside, asset, stage));
  }
  report_.bytes_read = moved_.bytes_read;
  report_.bytes_written = moved_.bytes_written;
  report_.resumed_bytes = moved_.resumed_bytes;
  const std::vector<Note> lost = cast_notes(source_.manifest, moved_.casts);
  report_.notes.insert(report_.notes.end(), lost.begin(), lost.end());
  Seal seal = make_seal();
  stage.publish([&] { prove(stage, seal); }, [&] { return encode_seal(seal); });
  report_.published = true;
}

void Conversion::prove(Stage& stage, Seal& seal) {
  check_source_unchanged();
  if (options_.verify) verify(stage, seal);
  if (options_.cancel != nullptr) options_.cancel->check();
}

void Conversion::check_source_unchanged() const {
  for (const StoredFile& file : source_.manifest.files) {
    std::optional<FileInfo> now = source_.directory->stat(file.path);
    bool same = now && now->size_bytes == file.size_bytes && now->mtime_ns == file.mtime_ns;
    if (same || (options_.salvage && !now)) continue;
    in_file(file.path, [] {
      fail(Code::kCorrupt, "the source changed while it was read",
           "run again when nobody writes to it");
    });
  }
}

void Conversion::verify(Stage& stage, Seal& seal) {
  OpenedCheckpoint written;
  written.path = stage.directory();
  written.display = options_.destination;
  written.file = output_.single_file ? result_name() : "";
  written.driver = driver_;
  written.directory = fs_.open_directory(stage.directory());
  written.manifest = driver_->manifest(written.place(), read_);
  written.locate_all(read_);
  bool may_drop = request_.values == KeepPolicy::kDrop || request_.opaque == KeepPolicy::kDrop;
  proof_ = prove_equal(source_, written, may_drop, transfer_);
  report_.verify_findings = proof_.findings;
  report_.verified = proof_.findings.empty();
  if (!report_.verified) throw VerifyFailed{};
  seal.tensors = proof_.tensors;
  seal.root = proof_.root;
}

}  // namespace

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
