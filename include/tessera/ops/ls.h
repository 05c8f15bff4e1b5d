#pragma once
// ls: what is inside. Headers only; tensors that sit inside values (in a tuple) are the one
// exception: their few bytes are hashed.
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/aliases.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

enum class LsSort : std::uint8_t { kStored, kName, kSize, kFile, kOffset };
/// "stored", "name", "size", "file", "offset". Throws kInvalidArgument.
LsSort parse_ls_sort(std::string_view text);

struct LsOptions {
  bool chunks = false;               // fill LsTensor::table
  std::optional<std::int64_t> rank;  // only chunks this rank wrote, and tensors with one
  std::string file;                  // the same by file (a glob)
  LsSort sort = LsSort::kStored;
  std::size_t top = 0;  // first N after sorting; 0 = all
};

/// One stored chunk of a tensor.
struct ChunkRow {
  std::vector<std::int64_t> offsets;  // origin in the tensor
  std::vector<std::int64_t> lengths;  // the box's shape
  std::int64_t flat_begin = 0;        // elements of the box's ravel; all of it unless is_flat
  std::int64_t flat_end = 0;
  bool is_flat = false;           // a partial range of the box
  std::string source;             // "extent", "item", "coded", "inline", "fill"
  std::string file;               // "" for inline and fill
  std::uint64_t file_offset = 0;  // bytes
  std::uint64_t file_length = 0;
  std::optional<std::int64_t> rank;  // who wrote it, where the file's name says so
  std::int64_t replica = 0;          // n-th copy of the same box and range
};

struct LsTensor {
  std::uint32_t index = 0;  // in Manifest::tensors
  SharedText name;
  std::string dtype;  // PyTorch's name
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  std::uint64_t bytes = 0;
  TensorKind kind = TensorKind::kOther;
  std::uint32_t chunks = 0;
  std::string sharding;  // "dim 0 x 4", "dims 0,1 x 2x2", "flat x 3", "" for one chunk
  std::int64_t replicas = 1;
  std::vector<std::string> files;
  std::vector<ChunkRow> table;
};

struct LsReport {
  std::string path;
  std::string format;
  std::string dialect;
  std::optional<std::int64_t> world_size;
  std::string world_size_source;
  std::vector<LsTensor> tensors;
  std::vector<std::pair<std::string, Value>>
      values;                     // name -> JSON form (encoding/json.h to_json_value)
  std::vector<Alias> aliases;     // tied weights that are recorded and not stored
  std::uint64_t total_bytes = 0;  // of the tensors listed
  std::int64_t total_numel = 0;
  std::vector<Note> notes;
};

/// The tensors that are listed, in their order, each described when it is asked for: a million
/// descriptions would take several times the memory of the manifest, which must stay as it is.
class LsRows {
 public:
  /// Throws kInvalidArgument for a rank or file that the checkpoint does not have.
  LsRows(const Manifest& manifest, const LsOptions& options);
  std::size_t size() const { return tensors_.size(); }
  LsTensor operator[](std::size_t i) const;
  std::uint64_t total_bytes() const;
  std::int64_t total_numel() const;

 private:
  bool is_filtered() const { return options_.rank || !options_.file.empty(); }
  void sort();

  const Manifest& manifest_;
  LsOptions options_;
  std::vector<std::uint32_t> tensors_;  // indices in Manifest::tensors
};

/// Everything but LsReport::tensors, which `rows` stands for.
LsReport list_all_but_rows(OpenedCheckpoint& checkpoint, const LsRows& rows);

LsReport list_tensors(OpenedCheckpoint& checkpoint, const LsOptions& options = {});

/// The `values` of ls alone. Reads (and hashes) the tensors inside values.
std::vector<std::pair<std::string, Value>> json_values(OpenedCheckpoint& checkpoint,
                                                       const TransferOptions& transfer = {});
/// Chunk table of one tensor.
std::vector<ChunkRow> chunk_table(const Manifest& manifest, const StoredTensor& tensor);

}  // namespace tessera
