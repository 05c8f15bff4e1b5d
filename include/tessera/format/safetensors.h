#pragma once
// safetensors: one file, Hugging Face shards with or without an index, and the rank files of
// PyTorch's Hugging Face storage writer. Stateless; thread-safe. docs/formats/safetensors.md has
// the bytes.
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

const FormatDriver& safetensors_driver();

/// The files of a set of shards, as an index names them and what they hold.
struct ShardNames {
  std::string index;                           // the index' own file name
  std::map<std::string, std::string> file_of;  // by tensor
};

/// Cuts into files of at most so many bytes; without it one file (with --to hf: 5 GB).
inline constexpr OptionOf<std::uint64_t> kMaxShardSizeFlag{
    {FormatOption::Kind::kSize, "--max-shard-size", "SIZE",
     "safetensors: cut into files of at most SIZE"}};
/// Whose index names the files: operations read it and hand kShardNames over.
inline constexpr OptionOf<std::string> kAsIndexFlag{
    {FormatOption::Kind::kPath, "--as-index", "PATH",
     "safetensors: files named and split as this index (or that of a folder) says; default: "
     "SRC's"}};
/// These files and this index, instead of cutting by size.
inline constexpr OptionOf<ShardNames> kShardNames{
    {FormatOption::Kind::kHanded, "shard names", "", ""}};

/// What a folder of weight deltas begins from; "": `base` beside it. Operations open it.
inline constexpr OptionOf<std::string> kBaseFlag{
    {FormatOption::Kind::kPath, "--base", "PATH",
     "weight deltas: the weights that they begin from; without PATH the folder base beside them"}};
/// The blobs of deltas as they are stored.
inline constexpr OptionOf<bool> kDeltaBlobs{{FormatOption::Kind::kHanded, "delta blobs", "", ""}};

/// What our own deltas say beyond the published form: so that the base may have other tensors, and
/// another state around them.
struct DeltaRest {
  std::set<std::string> whole;  // tensors that are stored as they are
  std::map<std::string, std::string>
      unchanged;                                // tensors that stay as in the base: their checksums
  std::vector<std::string> gone;                // tensors that only the base has
  std::map<std::string, std::string> metadata;  // what __metadata__ of the whole weights would be
};

/// What the index of weight deltas says. `encoding`: "" in a folder of whole weights.
struct DeltaIndex {
  std::string version;       // of the weights
  std::string base_version;  // that they differ from
  std::string encoding;      // "xor", "overwrite"
  std::string compression;   // "zstd"
  std::string checksum;      // "adler32", "xxh3-128", "blake3": of a tensor's bytes, as they become
  bool is_empty = false;     // names no file: nothing changed
  std::shared_ptr<const DeltaRest> rest;
};
/// `index`: the file; "": the folder's one.
/// `guess`: an index that cannot be parsed is none of deltas.
DeltaIndex read_delta_index(const Directory& directory, std::string index = {}, bool guess = false);
/// Makes of a tensor's bytes in the base version those of this one. Throws kCorrupt where they have
/// another checksum, kUnsupported for encodings, compressions and checksums of other kinds.
void apply_delta(const DeltaIndex& index, ByteView blob, std::string_view sum, MutableBytes tensor);

/// Throws kCorrupt where the bytes have another checksum than `sum`, kUnsupported for checksums of
/// other kinds.
void check_delta_sum(const DeltaIndex& index, std::string_view sum, ByteView tensor);
/// The state that our own delta's `metadata` says, over tensors of these names. Sets `embedded[i]`
/// for those that only values refer to.
StateDict restore_state(std::span<const SharedText> names,
                        const std::map<std::string, std::string>& metadata,
                        std::vector<bool>& embedded);

/// How a delta is written: what the files hold of each tensor of the manifest that is planned.
/// Blobs already stand there as tensors of bytes.
struct WrittenDelta {
  enum class As : std::uint8_t { kUnchanged, kBlob, kWhole };
  DeltaIndex index;               // but for `rest`
  std::vector<As> tensors;        // by tensor
  std::vector<std::string> sums;  // by tensor: of blobs and what is unchanged
  std::vector<std::string> gone;
};
inline constexpr OptionOf<std::shared_ptr<const WrittenDelta>> kWrittenDelta{
    {FormatOption::Kind::kHanded, "written delta", "", ""}};

/// The one index of shards in a folder, "" when there is none. Throws kUnsupported for several.
std::string find_shard_index(const Directory& directory);
/// What an index says. Throws kCorrupt where it is none, or names files that are no safetensors
/// files of its folder.
ShardNames read_shard_names(const Directory& directory, const std::string& index);

}  // namespace tessera
