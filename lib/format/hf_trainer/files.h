#pragma once
// Which files of a folder are one training state: the weights of one model, its optimizer, and what
// the trainer keeps as small dicts. Names are those of Trainer (`optimizer.pt`) and of accelerate's
// save_state (`optimizer.bin`).
#include <tessera/format/format_driver.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::hf_trainer {

struct StateFile {
  std::string file;  // "optimizer.pt"
  std::string key;   // where its dict stands in the state: "optimizer"
};

struct StateFolder {
  std::string weights;          // a name that shows them: "model.safetensors", or an index
  bool is_safetensors = false;  // else files of torch.save
  bool is_adapter = false;
  std::vector<StateFile> files;  // the optimizer first
};

/// What Trainer writes with torch.save, the optimizer first.
std::vector<StateFile> state_files();

/// PEFT's, before the names of the model that it adapts.
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";

/// nullopt: no optimizer's file, no weights, or weights of several models (a base beside its
/// adapter), of which nothing says whose the optimizer is.
std::optional<StateFolder> find_state(const Directory& directory);

}  // namespace tessera::hf_trainer
