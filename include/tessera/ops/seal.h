#pragma once
// Seal: what we write beside our own results so that a reader can prove them whole:
// `tessera.manifest.json` in a folder, `FILE.tessera.json` beside a single file. JSON, schema
// "tessera.manifest/1":
//
//   format, tool   what wrote it ("tessera 0.1.0")
//   source         {path, format, tensors, bytes}
//   files          [{path, size, crc32_per_mib: ["89abcdef", ...]}]; paths relative to the folder;
//                  one CRC-32 per MiB begun
//   sharded        names of tensors stored in more than one piece (or meant to be: a W=1 result of
//                  a sharded source)
//   aliases        {name: the tensor that has its bytes}, of tied weights that were left out;
//                  absent when there are none
//   tensors, root  [{name, dtype, shape, sha256}], when the run was asked to verify
//   balance        what the source held, what was written, and what was left out and why
//                  (state/balance.h); absent in the seals of releases that kept none
//   lost           [{name, reason}]: what --salvage could not bring over, in this run or in those
//                  that made its source; absent when nothing was lost
//   crc32          of the text before this last member: a seal that is damaged itself is no seal
//
// A seal whose files differ in size from what is there counts as absent. Pure but for read_seal.
// Thread-safe.
#include <tessera/base/bytes.h>
#include <tessera/ops/hashed_tensor.h>
#include <tessera/state/aliases.h>
#include <tessera/state/balance.h>
#include <tessera/state/manifest.h>
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// What --salvage could not bring over: a tensor, or a value that could not be decoded.
struct LostTensor {
  std::string name;
  std::string reason;  // one line
};

struct SealedFile {
  std::string path;
  std::uint64_t size_bytes = 0;
  std::vector<std::uint32_t> crc32_per_mib;
};

struct Seal {
  std::string format;
  std::string tool;
  std::string source_path;
  std::string source_format;
  std::uint64_t source_tensors = 0;
  std::uint64_t source_bytes = 0;
  std::vector<SealedFile> files;
  std::vector<std::string> sharded;
  std::vector<Alias> aliases;
  std::vector<HashedTensor> tensors;  // empty unless verified
  std::string root;                   // "" unless verified
  std::optional<Balance> balance;
  std::vector<LostTensor> lost;

  const SealedFile* find(std::string_view path) const;
};

Bytes encode_seal(const Seal& seal);
/// Throws kCorrupt for text that is no seal.
Seal decode_seal(ByteView text);

/// Where the seal of `file` lies in its directory; "": that of a folder.
std::string seal_name(std::string_view file);

/// The seal of a checkpoint: `file` is "" for a folder, else the file's name in `directory` (whose
/// own seal counts where that is of this file alone).
/// nullopt when there is none (`why`, may be null, is empty then), when it cannot be parsed, or
/// when it does not match the sizes there
/// (`why` says so).
std::optional<Seal> read_seal(const Directory& directory, std::string_view file,
                              std::string* why = nullptr);

/// The format of the seal of a folder, whatever lies beside it now; "" where there is none that can
/// be parsed.
std::string sealed_format(const Directory& directory);

/// Files that the seal of a folder lists and that are not there, or are no regular files: what they
/// held is lost, whatever the other files are. Empty where there is no seal that can be parsed.
std::vector<std::string> missing_files(const Directory& directory);

/// {"source": .., "restated": [..], "written": .., "left_out": [..], "left_behind": [..]}: of a
/// seal and of the reports of reshard and convert.
Value encode_balance(const Balance& balance);

/// Marks the tensors that the seal names as sharded (StoredTensor::always_sharded), and records its
/// aliases.
void apply_seal(const Seal& seal, Manifest& manifest);

/// Upper bound of encode_seal's size, before the sums are known.
std::uint64_t seal_size_bound(const Seal& seal);

}  // namespace tessera
