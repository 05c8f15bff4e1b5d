#pragma once
// --base-model: the folder of the model that a checkpoint began from.
#include <tessera/storage/file_system.h>

#include <string>

namespace tessera {

/// The folder that has a model's files: `folder` itself, or, where that is the model's in the hub's
/// cache (models--ORG--NAME), the snapshot of its revision main; without a main, of the only one
/// there is. Throws kNotFound naming the revisions where several are there.
std::string model_folder(const FileSystem& fs, const std::string& folder);

/// model_folder() of `base`, where that is a folder; else the snapshot of the model of that name ("org/name",
/// "name", with "@revision") in the Hugging Face Hub's cache on this machine: HF_HUB_CACHE, or
/// HF_HOME/hub, or XDG_CACHE_HOME/huggingface/hub, or ~/.cache/huggingface/hub. Nothing is
/// downloaded. Throws kNotFound with what was looked for.
std::string base_folder(const FileSystem& fs, const std::string& base);

}  // namespace tessera
