#pragma once
// torch-rank-files: one torch.save file per rank: FSDP1's local, sharded and full state dicts,
// accelerate's and verl's rank files, any state of DTensors or ShardedTensors. Stateless;
// thread-safe. docs/formats/torch-rank-files.md has the forms.
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera {

const FormatDriver& torch_rank_files_driver();

/// The text of a record of what FSDP1's flat parameters hold. Its form:
/// docs/formats/torch-rank-files.md.
inline constexpr OptionOf<std::string> kFlatLayoutFlag{
    {FormatOption::Kind::kFile, "--flat-layout", "FILE",
     "which parameters FSDP1's flat parameters hold, as JSON, where the rank files do not say"}};

/// The rank in the name of a rank's file ("model_world_size_4_rank_3.pt" is rank 3's); nullopt for
/// other names.
std::optional<std::int64_t> rank_in_file_name(std::string_view name);

}  // namespace tessera
