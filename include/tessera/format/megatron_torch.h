#pragma once
// megatron-torch: Megatron-LM's own checkpoints, one folder per tensor-, pipeline- and
// expert-parallel rank (mp_rank_XX[_YYY][_ZZZ]). See docs/formats/megatron-torch.md.
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <string_view>

namespace tessera {

/// The driver; stateless, lives as long as the program.
const FormatDriver& megatron_torch_driver();

/// What Megatron-LM looks into for the newest checkpoint, whatever the format.
inline constexpr PointerFile kTracker{"latest_checkpointed_iteration.txt", "iter_"};

/// Reading: where tensor-parallel ranks hold different parts of a tensor whose name does not say how
/// it is cut, they are plain rows, one rank's behind the other's. Writing: such a tensor is no fused
/// one.
inline constexpr OptionOf<bool> kAssumePlainFlag{
    {FormatOption::Kind::kSwitch, "--assume-plain", "",
     "Megatron's rank files: treat a tensor without a tensor-parallel rule as sharded by rows, if "
     "it is sharded; default: exit 5"}};

/// Writing: for which release of megatron-core, 0.<N>; 17 stands for all from there on. Not given: for
/// the one that args show, or 16.
inline constexpr OptionOf<std::int64_t> kMegatronCoreFlag{
    {FormatOption::Kind::kChoice, "--megatron-core", "16|17",
     "Megatron's rank files: the release of megatron-core, 0.N, that is to load them (17: and "
     "newer); "
     "it has a name of its own for layers of further tokens; default: as the source's args show, "
     "else 16"}};

/// The run's arguments, where a selection took them out of the state: they say whether weights are tied,
/// and matrices gated, as well.
inline constexpr OptionOf<Value> kRunArguments{
    {FormatOption::Kind::kHanded, "run arguments", "", ""}};

/// Whether a folder of this name is a rank's ("mp_rank_00_003"), and a file of this name what lies
/// in one ("model_optim_rng.pt", "distrib_optim.pt").
bool is_megatron_rank_folder(std::string_view name);
bool is_megatron_rank_file(std::string_view name);

/// What the `args` in a file of torch.save that was read alone say is elsewhere ("the files of the
/// 3 other ranks ..."); "" where they say nothing, or the model is whole by its own sizes.
std::string megatron_ranks_elsewhere(const Manifest& manifest);

}  // namespace tessera
