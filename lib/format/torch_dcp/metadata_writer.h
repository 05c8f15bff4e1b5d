#pragma once
// Renders `.metadata`: schema of PyTorch 2.4 to 2.9 (storage_meta None) with the version string
// of 2.10, pickled with protocol 2, which every release from 2.0 on reads.
#include <tessera/base/bytes.h>
#include <tessera/state/value.h>
#include <tessera/tensor/packed_chunks.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace tessera::dcp {

/// One key of state_dict_metadata, where the source has it.
struct WrittenEntry {
  const StateEntry& state;           // its name and path
  const TensorSpec* spec = nullptr;  // of a tensor; null: a value
};

/// All keys, asked for one by one.
struct WrittenEntries {
  std::size_t count = 0;
  std::function<WrittenEntry(std::size_t e)> at;
};

/// One item and the chunk it holds; none for a value.
struct WrittenItem {
  std::uint32_t entry = 0;
  std::int64_t rank = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::optional<ChunkView> chunk;
};

/// All items in file order, asked for one by one: there may be millions.
struct WrittenItems {
  std::size_t count = 0;
  std::function<std::uint32_t(std::size_t i)> entry_of;
  std::function<WrittenItem(std::size_t i)> at;
};

/// Chunks of one entry are listed in the order of their items. `length`: what count_metadata()
/// said, 0 where it was not asked. Pure.
Bytes render_metadata(const WrittenEntries& entries, const WrittenItems& items,
                      std::uint64_t length = 0);
/// How long that is.
std::uint64_t count_metadata(const WrittenEntries& entries, const WrittenItems& items);

}  // namespace tessera::dcp
