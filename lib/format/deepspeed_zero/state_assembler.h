#pragma once
// Puts a DeepSpeed state together in a Manifest under the names both formats share:
//
//   model.<name>                      weights (the fp32 masters), buffers
//   optim.state.<name>.<leaf>         fp32, exp_avg, exp_avg_sq, step, ...
//   optim.param_groups.<i>.<option>   `params` lists names
//   deepspeed.<field>                 of the optimizer file
//   <field>                           of the model file
//
// What is not trained (buffers, frozen parameters, second names of tied ones) also has an
// optim.state.<name>.fp32, cast from the module's: ds_to_universal makes one of each.
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lib/format/deepspeed_zero/files.h"
#include "lib/format/torch_files/archive_manifest.h"

namespace tessera::deepspeed {

class StateAssembler {
 public:
  StateAssembler(ArchiveManifestBuilder& builder, const ModelFile& model)
      : builder_(builder), model_(model) {}

  std::uint32_t add_model(const std::string& name, const TensorSpec& spec,
                          std::span<const ArchivePiece> pieces);
  std::uint32_t add_leaf(const std::string& name, std::string_view leaf, const TensorSpec& spec,
                         std::span<const ArchivePiece> pieces);
  void add_leaf_value(std::uint32_t file, const std::string& name, std::string_view leaf,
                      const Value& value);
  /// A tensor of the module as it stands: model.<name>; buffers of low precision are cast to fp32.
  void add_module_tensor(const NamedTensor& item);
  /// A frozen parameter: whole in the model file, or (`ranks` of a stage 3 checkpoint over
  /// `world_size`) cut over theirs. `holder`: the name it is stored under.
  void add_frozen(const std::string& name, const std::string& holder, const Shape& shape,
                  std::span<const ModelFile> ranks, std::int64_t world_size);
  /// optim.state.<name>.fp32 cast from a whole tensor of `file`; nothing for a type without a cast.
  void add_derived_fp32(std::uint32_t file, const NamedTensor& item);
  /// The module's copy of a trained weight, when it has another type than the master: no leaf, but
  /// there for a writer of this format (module_copies()).
  void keep_module_copy(std::uint32_t file, const NamedTensor& item, DType master);
  /// The same of a copy in several pieces.
  void keep_module_copy(const std::string& name, const TensorSpec& spec,
                        std::span<const ArchivePiece> pieces, DType master);
  /// `options` with `params` replaced by names.
  void add_group(std::uint32_t file, std::size_t index, const Value& options,
                 const std::vector<std::string>& members, const Value& step);
  void add_globals(std::uint32_t file, const Value& globals);
  /// Fields of the model file, and the OrderedDict that the module is.
  void add_other_state();
  /// Where a weight stands.
  Path model_path(const std::string& name) const;
  /// Where a leaf of that parameter's state stands.
  Path state_path(const std::string& name, std::string_view leaf) const;

 private:
  std::uint32_t add_whole(const Path& path, std::uint32_t file, std::uint32_t tensor,
                          bool as_float32);

  ArchiveManifestBuilder& builder_;
  const ModelFile& model_;
};

/// The copies that keep_module_copy() kept: by name, their numbers in Manifest::tensors.
std::unordered_map<std::string, std::uint32_t> module_copies(const Manifest& manifest);

/// One piece that is all of an archive tensor.
ArchivePiece whole_piece_of(const ArchiveTensor& tensor, std::uint32_t file, std::uint32_t index);

/// Records which DeepSpeed wrote the model file `root` came from; ", DeepSpeed 0.19.8" for people,
/// "" where it does not say.
std::string note_version(Manifest& manifest, const Value& root);

}  // namespace tessera::deepspeed
