#pragma once
// Which files of a folder are one training state: the weights of one model, its optimizer, and what
// the trainer keeps as small dicts. Names are those of Trainer (`optimizer.pt`) and of accelerate's
// save_state (`optimizer.bin`). FSDP with FULL_STATE_DICT has both in one file each, the optimizer by
// names: `pytorch_model_fsdp.bin` and `optimizer.bin`. accelerate numbers the second and further ones
// of a run's models, optimizers and schedules: `model_1.safetensors`, `optimizer_1.bin`.
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::hf_trainer {

/// Where the weights and the optimizer stand in the state.
inline constexpr std::string_view kModel = "model";
inline constexpr std::string_view kOptimizer = "optimizer";

struct StateFile {
  std::string file;  // "optimizer.pt"
  std::string key;   // where its dict stands in the state: "optimizer"
};

struct StateFolder {
  std::string weights;                  // a name that shows them: "model.safetensors", or an index
  bool is_safetensors = false;          // else files of torch.save
  std::vector<StateFile> more_weights;  // of further models, in files of the same kind
  bool has_index = false;  // which says what is a part of the weights; else each file is by itself
  bool is_adapter = false;
  bool is_fsdp = false;          // of FULL_STATE_DICT
  std::vector<StateFile> files;  // the optimizers first
};

/// What Trainer writes with torch.save, the optimizer first; of a state with several of a kind
/// (`keys`), theirs with their numbers.
std::vector<StateFile> state_files(std::span<const std::string> keys = {});

/// "model_1" is the second "model"; 0 for the first; nullopt: another key.
std::optional<std::uint64_t> number_of(std::string_view key, std::string_view of);
/// "model_1.safetensors", "optimizer_1.bin": the file's name with the number; as it is for 0.
std::string numbered(std::string_view file, std::uint64_t number);

inline constexpr std::string_view kFsdpWeights = "pytorch_model_fsdp.bin";
/// In Manifest::provenance, with a key of the state behind it: the name of that part's file.
inline constexpr std::string_view kFileOf = "writer.hf-trainer.file.";

/// PEFT's, before the names of the model that it adapts.
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";

/// nullopt: no optimizer's file, no weights, or weights of several models (a base beside its
/// adapter), of which nothing says whose the optimizer is.
std::optional<StateFolder> find_state(const Directory& directory);

}  // namespace tessera::hf_trainer
