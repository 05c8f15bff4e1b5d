#pragma once
// The parts of the torch-save driver: reading, locating, planning the output.
#include <tessera/encoding/torch_archive.h>
#include <tessera/format/format_driver.h>

#include <span>

namespace tessera::torch_save {

Manifest read_manifest(const Place& place, const ReadOptions& options);
void locate(const Place& place, Manifest& manifest, std::span<const std::uint32_t> tensors,
            const ReadOptions& options);
OutputPlan plan_output(const Manifest& source, const TargetRequest& request);

/// Turns `source` into the extent of a dense tensor whose storage is located; strides and the
/// record's checksum go to the manifest's side tables. `file`: the archive's number in
/// Manifest::files.
void set_extent(Manifest& manifest, const TorchArchive& archive, const ArchiveTensor& tensor,
                std::uint32_t file, Source& source);

}  // namespace tessera::torch_save
