#pragma once
// metadata.pkl: which paths of which items lie where on which ranks. Plain data alone: any global in
// the pickle is refused. Versions 2.0 and 1.0.
#include <tessera/layout/layout.h>
#include <tessera/state/value.h>
#include <tessera/storage/file_system.h>
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::checkpointing {

inline constexpr std::string_view kMetadataFile = "metadata.pkl";
inline constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;

/// default_tensor_v1: one of the pieces that a rank's local tensor holds.
struct Piece {
  Box local;
  Box whole;
};

/// Ranks that hold one path alike, and where.
struct Group {
  TensorSpec spec;  // of the whole
  std::vector<std::int64_t> ranks;
  std::optional<Layout> layout;         // DTensorShardingMetadata
  std::vector<std::int64_t> mesh_data;  // the rank at each place of the mesh
  std::string device_type;              // of the mesh
  std::vector<Piece> pieces;            // default_tensor_v1
};

/// What one rank holds of the whole; empty: the group says nothing of it.
std::vector<Chunk> chunks_on(const Group& group, std::int64_t rank);

struct PathEntry {
  Path path;                // without the item
  std::string stored_name;  // its parts joined by dots: the name in a safetensors file
  std::vector<Group> groups;
};

/// A file that is no <item>_<rank>.pt.
struct FileLayout {
  std::string file;
  std::string serialization;  // "SafetensorsSerialization"
};

struct Item {
  std::map<std::string, PathEntry> paths;      // by dotted name, without the item
  std::map<std::int64_t, FileLayout> layouts;  // ranks with a layout of their own
};

struct Metadata {
  std::string version;
  std::int64_t world_size = 0;
  std::string device_type;  // of the first mesh; "" where there is none
  std::map<std::string, Item> items;
};

/// nullopt: there is no such file. Throws kCorrupt for what contradicts itself and for names that
/// leave the folder, kUnsupported for other versions, placements and kinds of sharding.
std::optional<Metadata> read_metadata(const Directory& directory, std::uint64_t pickle_limit_bytes);

}  // namespace tessera::checkpointing
