#pragma once
// Gather: reads what some regions of some tensors need, each source byte once, and scatters it in
// memory into the places given. The only code that moves stored tensor bytes; TensorReader and the
// executor are two ways of naming places.
//
//   tasks --query--> needs (one contiguous file range each)
//         --sort, merge--> reads of at most a block
//         --each need--> checksum, byte order, conj / neg
//         --each target--> runs copied; or, cast: small blocks --cast--> copied
//
//   gather.cc           which bytes of which files, and their reads
//   gather_cached.cc    runs that lie in the page cache, straight into their places
//   gather_decode.cc    sources that are no bytes of a file as they are: coded, inline, fill, memory
//   gather_computed.cc  elements that are made of other tensors' elements
//   gather_place.cc     what was read, into its places
//
// Thread-safe with one Worker per thread.
#include <tessera/base/progress.h>

#include <memory>
#include <span>
#include <vector>

#include "lib/reshard/file_pool.h"
#include "lib/reshard/geometry.h"
#include "lib/reshard/source_choice.h"
#include "lib/reshard/worker.h"
#include "lib/state/windowed_recipe.h"

namespace tessera {

/// A dense place for part of a tensor.
struct TargetSpan {
  Region box;                 // collapsed coordinates, inside the task's region
  std::byte* data = nullptr;  // dense row-major in box
  std::uint64_t file_offset =
      0;  // where `data` will lie in its file: checksums are cut at its MiB borders
  bool want_crc = false;
};

struct CopyTask {
  const Geometry* geometry = nullptr;
  std::uint32_t tensor = 0;
  Region region;  // prefix-fixed
  std::vector<TargetSpan> targets;
};

/// The CRC of bytes [offset, offset + length) of one target, made while they were copied.
struct Fragment {
  std::uint32_t task = 0;
  std::uint32_t target = 0;
  std::uint64_t offset = 0;  // bytes from the target's start
  std::uint64_t length = 0;
  std::uint32_t crc = 0;
};

struct GatherOptions {
  std::uint64_t block_bytes = std::uint64_t{8} << 20;  // a merged read
  std::uint64_t span_bytes = std::uint64_t{8} << 20;   // a read of a strided source
  std::uint64_t item_bytes = std::uint64_t{1} << 30;   // what decoding one item may take
  const CancelToken* cancel = nullptr;
  bool place = true;  // false: what is read is proved and dropped
  std::uint64_t read_through_bytes = std::uint64_t{256} << 10;  // gaps that are read, not skipped
  std::uint64_t window_bytes = std::uint64_t{16} << 20;         // of parts that are read together
};

class Gather {
 public:
  /// `prover` may be null: no checksum is proved.
  Gather(const Manifest& manifest, FilePool& files, RecordProver* prover,
         const GatherOptions& options)
      : manifest_(manifest), files_(files), prover_(prover), options_(options) {}

  /// Fills every target. Appends fragments of targets that want CRCs, where they came for free.
  void run(std::span<const CopyTask> tasks, Worker& worker, std::vector<Fragment>* fragments) const;
  /// Whether everything this tensor is read from lies in the page cache now.
  bool lies_in_cache(const Geometry& geometry) const;

 private:
  struct Need;
  struct Op;
  struct CachedRun;
  static void check_extent(const Need& need);
  void collect(const CopyTask& task, std::uint32_t number, std::vector<Need>& needs) const;
  void add_strided(const CopyTask& task, RegionView piece, Need need,
                   std::vector<Need>& needs) const;
  void read_group(std::span<const CopyTask> tasks, std::span<Need> group, Worker& worker,
                  std::vector<Fragment>* fragments) const;
  bool is_cached(std::uint32_t file, std::uint64_t offset, std::uint64_t length) const;
  bool is_cached(const Need& need) const;
  std::uint64_t most_at_once(const Need& first) const;
  /// Whether it would be read into its place at once, were it cached.
  bool goes_straight(const CopyTask& task, const Need& need, CachedRun& run) const;
  void read_cached_run(const CachedRun& run, const Need& need, Worker& worker,
                       std::vector<Fragment>* fragments) const;
  void from_memory(std::span<const CopyTask> tasks, const Need& need, Worker& worker,
                   std::vector<Fragment>* fragments) const;
  void from_computed(const CopyTask& task, const Need& need, Worker& worker,
                     std::vector<Fragment>* fragments) const;
  void compute(const CopyTask& task, const Source& source, std::int64_t begin, std::int64_t end,
               std::int64_t wanted, Worker& worker, MutableBytes out) const;
  void read_parts(const PartGeometries& of, ElementRange range, Worker& worker) const;
  void prove_parts(const PartGeometries& of, Worker& worker) const;
  const Bytes& decoded(const StoredTensor& tensor, const Need& need, Worker& worker) const;
  /// `is_read`: set once the item is read and its checksum added.
  Bytes decode_item(const Need& need, std::uint64_t most_bytes, Worker& worker,
                    bool& is_read) const;
  void prove_apart(const Need& need, Worker& worker) const;
  void place(const CopyTask& task, const Need& need, const std::byte* bytes, bool prove,
             Worker& worker, std::vector<Fragment>* fragments) const;
  void place_cast(const CopyTask& task, const Need& need, const std::byte* bytes,
                  Worker& worker) const;
  void read(std::uint32_t file, std::uint64_t begin, std::uint64_t end, Worker& worker,
            MeteredBuffer& into, const std::byte** data) const;

  const Manifest& manifest_;
  FilePool& files_;
  RecordProver* prover_;
  GatherOptions options_;
};

}  // namespace tessera
