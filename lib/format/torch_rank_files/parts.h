#pragma once
// The parts of the torch-rank-files driver: reading, planning the output.
#include <tessera/format/format_driver.h>

namespace tessera::rank_files {

Manifest read_manifest(const Place& place, const ReadOptions& options);
OutputPlan plan_output(const Manifest& source, const TargetRequest& request);

/// Keys of Manifest::provenance: what a writer needs to give a source back in its own shape.
inline constexpr std::string_view kFlavour = "writer.rank_files.flavour";  // see docs
inline constexpr std::string_view kParts = "writer.rank_files.parts";  // key=file name, one a line
inline constexpr std::string_view kFlatLayout = "writer.rank_files.flat_layout";  // FlatRecord
/// Values of kFlavour.
inline constexpr std::string_view kLocal = "local";  // flat parameters, optimizer keyed by id
inline constexpr std::string_view kLocalOrig = "local, use_orig_params";
inline constexpr std::string_view kSharded = "sharded";  // ShardedTensor or DTensor
inline constexpr std::string_view kFull = "full";        // every rank holds everything

}  // namespace tessera::rank_files
