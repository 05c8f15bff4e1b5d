// The result of a conversion: written into a stage, proved, published.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/state/optim_state.h>
#include <tessera/state/roles.h>
#include <tessera/state/sharding_rule.h>

#include <algorithm>
#include <map>

#include "lib/base/append.h"
#include "lib/ops/convert/conversion.h"
#include "lib/ops/convert/request.h"
#include "lib/ops/convert/tracker.h"
#include "lib/ops/verify/replicas.h"
#include "lib/state/role_names.h"
#include "lib/storage/linked_directory.h"

namespace tessera {
namespace {

constexpr std::string_view kTool = "tessera 0.1.0";

/// What failed first is what to say: the next run removes the rest.
void discard_quietly(Stage& stage) {
  try {
    stage.discard();
  } catch (const Error&) {
  }
}

/// Names that formats of named state write for tensors which the source has under ids, or under the
/// leaf before the name.
std::map<std::uint32_t, std::string> names_for_keys(const Manifest& manifest) {
  std::map<std::uint32_t, std::string> names;
  const Roles roles = find_roles(manifest.state);
  if (std::ranges::none_of(roles.optimizers, keyed_otherwise, &OptimizerRoot::dialect))
    return names;
  for (const OptimState& optim : canonical_optim_states(manifest, roles)) {
    if (!keyed_otherwise(optim.dialect)) continue;
    const std::string root = optim.root.empty() ? "" : optim.root + ".";
    for (const OptimParameter& parameter : optim.parameters)
      for (const OptimLeaf& leaf : parameter.leaves)
        if (leaf.tensor != kNoTensor && !leaf.name.empty())
          names.emplace(leaf.tensor, fmt::format("{}state.{}.{}", root, parameter.fqn, leaf.name));
  }
  return names;
}

}  // namespace

std::unique_ptr<Stage> Conversion::open_stage() {
  make_parents(fs_, destination_);
  bare_source_ = storage::open_linked_directory(fs_, source_.directory->path());
  binding_ = SourceBinding::of(*bare_source_, source_.manifest.files, transfer_.threads);
  StageOptions stage;
  stage.binding = binding_.encode();
  stage.still_bound = [this](ByteView kept) {
    const auto before = SourceBinding::decode(kept);
    return before && !before->replaced(*bare_source_, transfer_.threads);
  };
  stage.force = options_.force;
  stage.resume = options_.resume;
  stage.single_file = output_.single_file;
  stage.resumable = options_.ranks == nullptr;
  std::unique_ptr<Stage> opened = Stage::open(fs_, destination_, plan_hash_, stage);
  if (opened->started_anew())
    report_.notes.push_back({Finding::kResume, Severity::kWarning,
                             "the source is not the one that the interrupted run read: everything "
                             "is written again",
                             source_.display, ""});
  return opened;
}

Seal Conversion::make_seal() const {
  Seal seal;
  seal.format = driver_->id();
  seal.tool = kTool;
  seal.source_path = source_.display;
  seal.source_format = source_.driver->id();
  seal.source_tensors = leaf_tensors(source_.manifest).size();
  seal.source_bytes = source_bytes();
  for (std::size_t i = 0; i < output_.files.size(); ++i) {
    SealedFile file{path_of(output_.files[i]), output_.files[i].size_bytes, {}};
    if (i < moved_.crc32_per_mib.size()) file.crc32_per_mib = moved_.crc32_per_mib[i];
    seal.files.push_back(std::move(file));
  }
  seal.files.insert(seal.files.end(), asset_sums_.begin(), asset_sums_.end());
  seal.aliases = request_.aliases;
  seal.balance = report_.balance;
  seal.lost = report_.lost;
  if (source_.seal != nullptr)  // what was lost before stays lost
    seal.lost.insert(seal.lost.end(), source_.seal->lost.begin(), source_.seal->lost.end());
  const bool by_name = driver_->capabilities().groups_optimizers;
  std::map<std::uint32_t, std::string> fresh;
  if (by_name) fresh = names_for_keys(source_.manifest);
  std::vector<bool> sharded = sharded_tensors(source_.manifest, request_.replicate);
  for (std::size_t i = 0; i < sharded.size(); ++i) {
    const StoredTensor& tensor = source_.manifest.tensors[i];
    if (!sharded[i] || tensor.embedded) continue;
    const auto name = fresh.find(static_cast<std::uint32_t>(i));
    seal.sharded.push_back(name == fresh.end() ? std::string(tensor.name) : name->second);
  }
  return seal;
}

/// What a resumed run finds of its files, at their full size from their first byte on.
std::uint64_t Conversion::staged_bytes(const Stage& stage) const {
  if (!options_.resume) return 0;
  const auto directory = fs_.open_directory(stage.directory());
  std::uint64_t bytes = 0;
  for (const OutputFile& file : output_.files)
    if (const auto info = directory->stat(path_of(file))) bytes += info->size_bytes;
  return bytes;
}

/// A run that failed leaves what it found. Of a first one that is nothing, as it could fill the
/// disk; of one that resumed it is the work that was kept, with what it added. What may be wrong
/// goes.
void Conversion::leave(Stage& stage, Status status) const {
  const bool cancelled = status.code == Code::kCancelled;
  const bool may_be_wrong = source_changed_ || status.code == Code::kCorrupt;
  const bool keeps = options_.keep && !may_be_wrong && (cancelled || options_.resume);
  if (!keeps) {
    discard_quietly(stage);
  } else if (stage.keep() && !cancelled) {
    status.hint += fmt::format("{}what is finished is kept in {}: the same command continues it",
                               status.hint.empty() ? "" : "; ", stage.directory());
  }
  throw Error(std::move(status));
}

void Conversion::write() {
  std::unique_ptr<Stage> stage = open_stage();
  try {
    check_room(staged_bytes(*stage));
    write_to(*stage);
  } catch (const VerifyFailed&) {
    stage->discard();
  } catch (const Error& error) {
    leave(*stage, error.status());
  } catch (...) {
    if (!options_.resume || !options_.keep || !stage->keep()) discard_quietly(*stage);
    throw;
  }
}

/// Megatron's pointer beside the result, once the result is whole.
void Conversion::track() {
  if (options_.ranks != nullptr && options_.ranks->rank() != 0) return;
  if (!report_.published && !options_.dry_run) return;
  const auto tracker = Tracker::of(driver_->id(), destination_);
  if (!tracker) return;
  report_.notes.insert(report_.notes.begin(),
                       options_.dry_run ? tracker->plan(fs_) : tracker->publish(fs_));
}

void Conversion::write_to(Stage& stage) {
  moved_ = transfer(source_.manifest, *source_.directory, output_, *plan_, fs_, stage, transfer_);
  finish_in(stage);
}

void Conversion::finish_in(Stage& stage) {
  const Directory& beside = asset_directory_ ? *asset_directory_ : *source_.directory;
  for (const FileInfo& asset : assets_.copied) {
    asset_sums_.push_back(copy_asset(beside, asset, assets_, stage));
  }
  for (const FileInfo& sidecar : sidecars_)
    asset_sums_.push_back(copy_asset(*sidecar_directory_, sidecar, assets_, stage));
  report_.bytes_read = moved_.bytes_read;
  report_.bytes_written = moved_.bytes_written;
  report_.resumed_bytes = moved_.resumed_bytes;
  const std::vector<Note> lost = cast_notes(source_.manifest, moved_.casts);
  append(report_.notes, lost);
  Seal seal = make_seal();
  stage.publish([&] { prove(stage, seal); }, [&] { return encode_seal(seal); });
  report_.published = true;
}

void Conversion::prove(Stage& stage, Seal& seal) {
  check_source_unchanged();
  if (verifies()) verify(stage, seal);
  if (options_.cancel != nullptr) options_.cancel->check();
}

void Conversion::check_source_unchanged() {
  const auto refuse = [this](const std::string& path) {
    source_changed_ = true;
    in_file(path, [] {
      fail(Code::kCorrupt, "the source changed while it was read",
           "run again when nothing writes to it");
    });
  };
  for (const StoredFile& file : source_.manifest.files) {
    if (file.size_bytes == 0 && file.mtime_ns == 0) continue;  // lost: nothing of it was read
    std::optional<FileInfo> now = source_.directory->stat(file.path);
    bool same = now && now->size_bytes == file.size_bytes && now->mtime_ns == file.mtime_ns;
    if (same || (options_.salvage && !now)) continue;
    refuse(file.path);
  }
  const auto replaced = bare_source_ ? binding_.replaced(*bare_source_, transfer_.threads)
                                     : std::optional<std::string>();
  if (replaced && !(options_.salvage && !bare_source_->stat(*replaced))) refuse(*replaced);
  check_delta_base_unchanged();
  source_.check_archives();
}

/// What was written is one copy of several: the others must be its equals.
std::vector<std::string> Conversion::source_differences() const {
  const std::vector<std::uint32_t> tensors = leaf_tensors(source_.manifest);
  std::vector<std::string> out;
  for (const Note& note : compare_copies(source_, tensors, false, transfer_).findings)
    out.push_back(fmt::format("{} tensor \"{}\" of the source [{}]: {}", code_text(note.code),
                              note.tensor, note.file, note.message));
  return out;
}

void Conversion::verify(Stage& stage, Seal& seal) {
  OpenedCheckpoint written;
  if (whole_) {
    written = open_written_delta(stage.directory());
    source_.manifest = *whole_;
  } else {
    written.path = stage.directory();
    written.display = options_.destination;
    written.file = output_.single_file ? result_name() : "";
    written.driver = driver_;
    written.directory = fs_.open_directory(stage.directory());
    written.manifest = driver_->manifest(written.place(), read_);
    written.locate_all(read_);
  }
  const bool may_drop = leaves_values_out() || request_.opaque == KeepPolicy::kDrop;
  proof_ = prove_equal(source_, written, may_drop, transfer_);
  for (std::string& difference : source_differences())
    proof_.findings.push_back(std::move(difference));
  report_.verify_findings = proof_.findings;
  report_.not_compared = proof_.not_compared;
  for (const std::string& change : proof_.transformed)
    report_.notes.push_back({Finding::kNone, Severity::kInfo, change, "", ""});
  report_.verified = proof_.findings.empty();
  if (!report_.verified) throw VerifyFailed{};
  report_.verify_scope = verify_scope(written.manifest, report_);
  seal.tensors = proof_.tensors;
  seal.root = proof_.root;
}

}  // namespace tessera
