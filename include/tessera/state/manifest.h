#pragma once
// Manifest: a checkpoint as data. Which tensors, which chunks of them lie where, and the non-tensor
// state. Built from headers and metadata alone: no tensor byte has been read.
//
//   files   --- one per physical file, relative to the checkpoint's folder
//   tensors --- name, TensorSpec, a run of chunks
//   chunks  --- packed: coordinates, optional flat range, one Source (<= 120 bytes a chunk in all)
//   state   --- the flattened state dict: names -> tensor references and values
//
// Sources of kind kPending point at an archive item whose inside has not been opened; the format's
// locate() turns them into extents, once per file, and only for verbs that read data.
// A Manifest is a value: no open files. Thread-safe to read.
#include <tessera/state/element_recipe.h>
#include <tessera/state/findings.h>
#include <tessera/state/value.h>
#include <tessera/tensor/packed_chunks.h>
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Where the elements of one stored chunk come from, and what must be done to them.
struct Source {
  enum class Kind : std::uint8_t {
    kPending,   // an archive item [offset, offset + length) of `file`; call FormatDriver::locate
    kExtent,    // elements at `offset` of `file`, row-major dense or by `strides`
    kCoded,     // bytes [offset, offset + length) decode by codec chain `side` to the dense chunk
                // (what one codec of the chain hands to the next may be larger than the chunk)
    kInline,    // Manifest::inline_bytes[side]: the dense chunk itself
    kFill,      // every element equals Manifest::inline_bytes[side]
    kMemory,    // as kExtent, but `offset` is an address in this process: a live tensor. No reader
                // of files makes these
    kComputed,  // made of other tensors' elements as Manifest::computed[side] says. Only edits of
                // the manifest make these
  };
  enum Flag : std::uint8_t { kByteSwap = 1, kConj = 2, kNeg = 4 };

  Kind kind = Kind::kPending;
  std::uint8_t flags = 0;
  std::uint16_t view = 0;    // kCoded, kComputed: 1 = `side` is an index in Manifest::views
  std::uint32_t file = 0;    // index in Manifest::files
  std::uint64_t offset = 0;  // bytes in the file
  /// Bytes: the item (kPending, kCoded), or the span the elements touch (kExtent).
  std::uint64_t length = 0;
  std::uint32_t side = 0;    // kExtent: 1 + index in Manifest::strides, 0 = dense; others: above
  std::uint32_t record = 0;  // 1 + index in Manifest::records, 0 = no checksum known
};
static_assert(sizeof(Source) == 32);

/// A stored record with a checksum of all its bytes: a zip entry. (Files of ours that have none are
/// held against the seal as they are read.)
struct Record {
  std::uint32_t file = 0;
  std::uint32_t crc32 = 0;  // zip polynomial
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  bool operator==(const Record&) const = default;
};

/// Part of the dense elements that a coded item decodes to, or that are computed: a derived
/// tensor's chunk.
struct CodedView {
  std::uint32_t codecs = 0;           // index in Manifest::codecs, or in Manifest::computed
  std::int64_t first_element = 0;     // of the item's elements
  std::vector<std::int64_t> strides;  // elements, per dim of the chunk; empty: dense
};

struct StoredFile {
  std::string path;              // relative to the checkpoint's folder, '/' separated
  std::uint64_t size_bytes = 0;  // as found when opened
  std::int64_t mtime_ns = 0;
  bool is_archive = false;  // of torch.save: a zip of records, each with its CRC-32
};

/// Chunks of every tensor, packed, each with its source.
class ChunkTable {
 public:
  std::size_t size() const { return sources_.size(); }
  /// Appends a chunk; chunks of one tensor must be appended in one run.
  void add(const ChunkView& chunk, const Source& source);
  /// `rank`: the tensor's, as a check.
  Chunk chunk(std::size_t index, int rank) const;
  /// Valid until the next add().
  ChunkSlice slice(std::size_t first, std::size_t count) const { return {chunks_, first, count}; }
  const Source& source(std::size_t index) const { return sources_[index]; }
  Source& source(std::size_t index) { return sources_[index]; }
  void reserve(std::size_t chunks, std::size_t coordinates);
  std::size_t memory_bytes() const;

 private:
  PackedChunks chunks_;
  std::vector<Source> sources_;
};

/// Scale and zero point of a quantized tensor (per tensor: one of each; per channel: vectors and an
/// axis).
struct QuantParams {
  std::string scheme;  // "per_tensor_affine", "per_channel_affine", ...
  double scale = 0;
  std::int64_t zero_point = 0;
  Value scales;  // per channel: tensor references
  Value zero_points;
  std::int64_t axis = 0;
};

enum class TensorKind : std::uint8_t { kParam, kBuffer, kOptim, kMaster, kOther };
std::string_view kind_name(TensorKind kind);

struct StoredTensor {
  SharedText name;  // dotted FQN of the leaf; for `embedded` ones the leaf value's name
  TensorSpec spec;
  std::uint64_t first_chunk = 0;  // in Manifest::chunks
  std::uint32_t chunk_count = 0;
  TensorKind kind = TensorKind::kOther;
  bool embedded = false;      // sits inside a value (a tensor in a tuple): no leaf of its own
  bool is_parameter = false;  // pickled as nn.Parameter
  bool requires_grad = false;
  bool always_sharded = false;  // our own manifest says that this tensor is a sharded one
  std::int32_t quant = -1;      // index in Manifest::quant, -1 = none
  /// Set: its bytes are elements of this type, and become spec.dtype when they are read.
  std::optional<DType> cast_from;

  DType stored_dtype() const { return cast_from.value_or(spec.dtype); }
};

/// A remark of the reader that is not fatal: unknown attribute kept, stale file ignored, ...
struct Note {
  Finding code = Finding::kNone;
  Severity severity = Severity::kInfo;
  std::string message;
  std::string file;
  std::string tensor;
};

/// What an edit of the state, or a writer, left out: for the account of whoever writes it
/// (state/balance.h).
struct LeftOut {
  enum class Kind : std::uint8_t {
    kTensor,     // an entry that is a tensor
    kValue,      // an entry that is a value
    kAttribute,  // the attributes of a container, which are no entry
  };
  Kind kind = Kind::kValue;
  std::string name;                 // as the entry was called when it was left out
  std::string reason;               // one line; "" until the step that asked for it says why
  std::uint64_t inner_tensors = 0;  // inside of a value
  std::uint64_t bytes = 0;          // of the tensor, or of those inside
};

/// A pickle global seen while opening.
struct GlobalUse {
  std::string name;  // "torch._utils._rebuild_tensor_v2"
  enum class Verdict : std::uint8_t { kKnown, kOpaque, kDenied } verdict = Verdict::kKnown;
  std::string file;
};

struct Manifest {
  std::string format;                      // "torch-dcp"
  std::string dialect;                     // human: "DCP, PyTorch 2.10 or newer (version 1.0.0)"
  std::optional<std::int64_t> world_size;  // writing ranks the checkpoint itself shows
  std::string world_size_source;           // "rank numbers in 4 file names"
  /// Each name has bytes of its own, whatever offset it states before locate(): a DCP may give all
  /// of them the offset of the blob that they are in.
  bool names_own_bytes = false;
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;
  ChunkTable chunks;
  StateDict state;
  std::vector<std::vector<std::int64_t>> strides;  // elements
  std::vector<Record> records;
  std::vector<Bytes> inline_bytes;
  std::vector<std::vector<std::string>> codecs;  // chains, applied left to right
  std::vector<CodedView> views;                  // of coded items that several tensors share
  std::vector<ComputedElements> computed;
  std::vector<QuantParams> quant;
  std::vector<Note> notes;
  /// Entries that keep_entries() left out since this list was last taken, in order.
  std::vector<LeftOut> left_out;
  std::vector<GlobalUse> globals;
  std::map<std::string, std::string> provenance;  // library versions and the like, when recorded
  /// FQN -> what the source calls it, of parameters that rename_parameters() renamed.
  std::map<std::string, std::string> stored_fqns;

  const StoredTensor* find(std::string_view name) const;  // linear; embedded ones excluded
  Chunk chunk(const StoredTensor& tensor, std::size_t i) const {
    return chunks.chunk(tensor.first_chunk + i, tensor.spec.shape.rank());
  }
  ChunkSlice chunks_of(const StoredTensor& tensor) const {
    return chunks.slice(tensor.first_chunk, tensor.chunk_count);
  }
  const Source& source(const StoredTensor& tensor, std::size_t i) const {
    return chunks.source(tensor.first_chunk + i);
  }
};

}  // namespace tessera
