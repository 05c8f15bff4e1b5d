#pragma once
// One run of convert(): from what was asked to a published result. Its steps, in order:
//
//   source.cc    open the source, edit and shape its state
//   delta.cc     make it deltas against another checkpoint (--delta-from)
//   convert.cc   plan files and copies, describe them, check that they fit
//   write.cc     write into a stage, prove, publish
//   shared.cc    the same by several processes together
//
// Not thread-safe; one object serves one run.
#include <tessera/format/safetensors.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/seal.h>
#include <tessera/reshard/executor.h>
#include <tessera/reshard/plan.h>
#include <tessera/state/balance.h>
#include <tessera/storage/stage.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/ops/convert/assets.h"
#include "lib/ops/convert/source_binding.h"
#include "lib/ops/convert/verify.h"
#include "lib/ops/edit/rank_objects.h"

namespace tessera {

/// Thrown inside prove() to stop publishing when --verify found a difference; never leaves
/// convert().
struct VerifyFailed {};

class Conversion {
 public:
  Conversion(FileSystem& fs, const ConvertOptions& options);

  ConvertReport run();

 private:
  void prepare();
  void open_source();
  void require_options_taken() const;
  void require_keys_possible() const;
  void list_lost_kinds();
  void list_joined_dicts();
  void check_destination() const;
  void edit_optimizers();
  void take_layout_of_index();
  void take_model_only();
  void locate_source();
  void check_beside();
  void salvage_source();
  void require_some_model() const;
  void book_transformations();
  void shape_state();
  void dequantize_source();
  void note_turned_experts(const std::vector<std::string>& blocks);
  void transform();
  void take_megatron_form(const ResultRanks& ranks);
  void clean_names();
  void check_layout_globs() const;
  void read_steps();
  void plan_output();
  OpenedCheckpoint open_delta_base() const;
  void check_delta_request() const;
  void name_versions(const OpenedCheckpoint& base, DeltaIndex& index) const;
  void plan_delta();
  void check_delta_base_unchanged() const;
  OpenedCheckpoint open_written_delta(const std::string& folder) const;
  void plan_assets();
  void fit_config(const Directory& directory);
  void note_unsaid_quantization();
  void check_assets(const Directory& directory);
  void note_missing_assets(const Directory& directory);
  void plan_sidecars();
  bool carry(const Beside& beside, std::string& why);
  void leave_behind(const Beside& beside, const std::string& why);
  void describe();
  void preflight();
  void check_room(std::uint64_t staged_bytes = 0);
  std::uint64_t staged_bytes(const Stage& stage) const;
  void write();
  [[noreturn]] void leave(Stage& stage, Status status) const;
  void track();
  void write_to(Stage& stage);
  void finish_in(Stage& stage);
  void together(const std::function<void()>& step);
  void share_host();
  void check_same_plan();
  void write_shared();
  void publish_shared(Stage& stage);
  void prove(Stage& stage, Seal& seal);
  void check_source_unchanged();
  void verify(Stage& stage, Seal& seal);
  bool leaves_values_out() const {
    return request_.values == KeepPolicy::kDrop ||
           (request_.hf_preset && request_.values == KeepPolicy::kDefault);
  }
  bool verifies() const { return options_.verify || (request_.hf_preset && !options_.no_verify); }
  std::vector<std::string> source_differences() const;
  /// The bytes of the tensors that are read.
  std::uint64_t source_bytes() const {
    return whole_ ? static_cast<std::uint64_t>(count_state(*whole_).bytes) : plan_->source_bytes();
  }
  std::unique_ptr<Stage> open_stage();
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
  Transformations transformations_;
  std::optional<StateEntry> arguments_;  // of the run, where the model alone is left of the source
  std::string quantization_;             // config.json's, of what --quantize made; ""
  TransferOptions transfer_;
  ReadOptions read_;
  std::string destination_;
  // Of --delta-from: what the deltas are made against, the source's manifest before it became that
  // of the blobs, the sums of these, and what of them is kept in memory.
  std::unique_ptr<OpenedCheckpoint> base_of_delta_;
  std::unique_ptr<Manifest> whole_;
  std::string delta_sums_;
  std::uint64_t kept_blob_bytes_ = 0;
  OpenedCheckpoint source_;
  const FormatDriver* driver_ = nullptr;
  OutputPlan output_;
  std::optional<Plan> plan_;
  std::unique_ptr<Directory> asset_directory_;
  AssetList assets_;
  std::unique_ptr<Directory> sidecar_directory_;
  std::vector<FileInfo> sidecars_;  // of the trainer, taken along
  std::string plan_hash_;
  std::vector<SealedFile> asset_sums_;
  std::unique_ptr<Directory> bare_source_;  // as it is on the disk
  SourceBinding binding_;
  bool source_changed_ = false;
  TransferResult moved_;
  VerifyProof proof_;
  ConvertReport report_;
};

}  // namespace tessera
