#pragma once
// torch-checkpointing: folders that PyTorch's torch_checkpointing wrote, DCP's announced successor.
// Stateless; thread-safe. docs/formats/torch-checkpointing.md has the bytes.
#include <tessera/format/format_driver.h>

#include <cstdint>

namespace tessera {

/// Default: as the source, else 2.
inline constexpr OptionOf<std::int64_t> kMetadataVersionFlag{
    {FormatOption::Kind::kChoice, "--metadata-version", "1|2",
     "version of torch_checkpointing's metadata.pkl; default: the source's, else 2"}};

const FormatDriver& torch_checkpointing_driver();

}  // namespace tessera
