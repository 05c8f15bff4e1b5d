#pragma once
// Which files make up a torch-save checkpoint: one; or a model and its optimizer saved side by side
// (`model.pt`, `optim.pt`), each under its own key of the whole.
#include <tessera/storage/file_system.h>

#include <string>
#include <string_view>
#include <vector>

namespace tessera::torch_save {

struct PartFile {
  std::string file;
  std::string key;  // of the part in the whole, "" = it is the whole
};

/// `model.pt` and `optim.pt` or `optimizer.pt` (.pth, .bin), with `scheduler.pt` and OLMo's
/// `train.pt` where there are such, model first. Empty when the folder is no such set: a part is
/// absent, or other files of torch.save stand beside them.
std::vector<PartFile> find_parts(const Directory& directory);

/// The folder's one file of torch.save's; "" when there is none or several.
std::string only_file(const Directory& directory);

/// `consolidated.00.pth`, `consolidated.01.pth`, ...: parts of one model as Meta publishes its
/// weights, each with a piece of every matrix. Sorted; empty where there are fewer than two.
std::vector<std::string> find_meta_parts(const Directory& directory);

/// The parts that `file` is one of by its name, itself among them, where others lie beside it:
/// `checkpoint_last-shard0.pt` (fairseq), `reshard-model_part-0.pt` (metaseq), `hf_model_0001_0.pt`
/// (torchtune, then its epoch). How they make a whole is not known. Empty: no part, or alone.
std::vector<std::string> find_numbered_parts(const Directory& directory, const std::string& file);
bool is_meta_part(std::string_view name);

/// Suffixes that a checkpoint found in a folder may have, the one that results have by themselves
/// first. A .tar is one only where it is named.
inline constexpr std::string_view kLoneSuffixes[] = {".pt", ".pth", ".ckpt", ".bin"};
/// Those and ".tar": names that torch.save's users give their files.
bool has_torch_suffix(std::string_view name);

}  // namespace tessera::torch_save
