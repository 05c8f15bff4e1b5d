#pragma once
// The model file that engines, zero_to_fp32 and ds_to_universal read: module, names and shapes,
// fields. Shared by both writers.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/format/deepspeed_zero/source_state.h"
#include "lib/format/torch_files/archive_draft.h"

namespace tessera::deepspeed {

/// What DeepSpeed's files keep of tensors: their elements.
inline DraftRules draft_rules(const SourceState& state) {
  return {.format = state.format, .quantized = false, .parameters = false, .ties = false};
}

/// What decides the files besides the state.
struct Target {
  int stage = 2;
  bool bf16 = false;
  std::int64_t world_size = 1;
  std::string folder;  // "<tag>/"
  /// Groups as they lie in the flat buffers: per group (stage 3: sub-group) indices of parameters
  /// in SourceGroup::parameters, those without elements left out.
  struct Buffer {
    std::size_t group = 0;
    std::vector<std::size_t> parameters;
    /// Experts: into how many shares the parameters fall, of as many each, one behind the other.
    /// Rank r holds a part of share r % shares, which is cut over world_size / shares ranks.
    std::int64_t shares = 1;
    std::span<const std::size_t> of_share(std::int64_t share) const {
      const std::size_t each = parameters.size() / static_cast<std::size_t>(shares);
      return std::span(parameters).subspan(static_cast<std::size_t>(share) * each, each);
    }
  };
  std::vector<Buffer> buffers;
  std::int64_t pipeline_stage = 0;
  std::int64_t pipeline_stages = 0;  // 0: no pipeline
};

/// The target of a request. Throws kInvalidArgument for a world size below 1 or above 2^20.
Target make_target(const Manifest& source, const TargetRequest& request, const SourceState& state,
                   std::string_view tag_suffix);

/// Adds what DeepSpeed asks for and the source does not have (Naming::added), decides how weights,
/// masters and what is not trained are distinguished. Throws kUnsupported where the stage cannot.
void complete(const Manifest& source, SourceState& state, const Target& target);

/// The files of experts, one for each of each layer.
std::vector<ArchiveFile> expert_files(const Manifest& source, const SourceState& state,
                                      const Target& target);

/// The model file of `rank` (-1: the one file of stages 1 and 2).
ArchiveFile model_file(const Manifest& source, const SourceState& state, const Target& target,
                       std::int64_t rank);

}  // namespace tessera::deepspeed
