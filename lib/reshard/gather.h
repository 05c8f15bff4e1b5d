#pragma once
// Gather: reads what some regions of some tensors need, each source byte once, and scatters it in
// memory into the places given. The only code that moves stored tensor bytes; TensorReader and the
// executor are two ways of naming places.
//
//   tasks --query--> needs (one contiguous file range each) --sort, merge--> reads of at most a
//   block
//         --each need--> checksum, byte order, conj / neg --each target--> runs copied
//                                                    or, cast: small blocks --cast--> copied
//
// A Worker owns the buffers of one thread and is reused. Thread-safe with one Worker per thread.
#include <tessera/base/progress.h>
#include <tessera/storage/aligned_buffer.h>
#include <tessera/tensor/cast.h>

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "lib/reshard/coded_gate.h"
#include "lib/reshard/file_pool.h"
#include "lib/reshard/geometry.h"
#include "lib/reshard/source_choice.h"

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

/// Staged bytes of all workers together: now and at most.
class StagedMeter {
 public:
  void add(std::int64_t bytes);
  std::uint64_t peak() const { return static_cast<std::uint64_t>(peak_.load()); }

 private:
  std::atomic<std::int64_t> now_{0};
  std::atomic<std::int64_t> peak_{0};
};

/// A reusable buffer whose size the meter sees.
class MeteredBuffer {
 public:
  explicit MeteredBuffer(StagedMeter& meter) : meter_(&meter) {}
  ~MeteredBuffer() { meter_->add(-static_cast<std::int64_t>(buffer_.size())); }
  MeteredBuffer(const MeteredBuffer&) = delete;
  MeteredBuffer& operator=(const MeteredBuffer&) = delete;
  std::byte* need(std::uint64_t bytes);
  /// Makes it that large and touches every page.
  void fill(std::uint64_t bytes);

 private:
  StagedMeter* meter_;
  AlignedBuffer buffer_;
};

struct Worker {
  Worker(StagedMeter& staged, CodedGate& coded)
      : meter(&staged),
        gate(&coded),
        read(staged),
        private_copy(staged),
        write(staged),
        cast(staged) {}
  ~Worker() { drop_decoded(); }
  /// Also where an error ends the work: others may wait for what is held here.
  void drop_decoded();
  StagedMeter* meter;
  CodedGate* gate;
  MeteredBuffer read;
  MeteredBuffer private_copy;  // bytes that are changed after reading: swapped, negated
  MeteredBuffer write;
  MeteredBuffer cast;  // a small block, as stored and as cast
  /// Compressed items, by file and offset; the caller drops them when it moves on.
  std::map<std::pair<std::uint32_t, std::uint64_t>, Bytes> decoded;
  std::uint64_t decoded_bytes = 0;
  std::uint64_t bytes_read = 0;
  std::map<std::uint32_t, CastCounts> casts;  // by tensor: what did not fit
};

/// Drops what a worker has decoded, however its work ends.
class DecodedAtEnd {
 public:
  explicit DecodedAtEnd(Worker& worker) : worker_(worker) {}
  ~DecodedAtEnd() { worker_.drop_decoded(); }
  DecodedAtEnd(const DecodedAtEnd&) = delete;
  DecodedAtEnd& operator=(const DecodedAtEnd&) = delete;

 private:
  Worker& worker_;
};

struct GatherOptions {
  std::uint64_t block_bytes = std::uint64_t{8} << 20;    // a merged read
  std::uint64_t span_bytes = std::uint64_t{8} << 20;     // a read of a strided source
  std::uint64_t decoded_bytes = std::uint64_t{1} << 30;  // decoded items kept per worker
  const CancelToken* cancel = nullptr;
};

class Gather {
 public:
  /// `prover` may be null: no checksum is proved.
  Gather(const Manifest& manifest, FilePool& files, RecordProver* prover,
         const GatherOptions& options)
      : manifest_(manifest), files_(files), prover_(prover), options_(options) {}

  /// Fills every target. Appends fragments of targets that want CRCs, where they came for free.
  void run(std::span<const CopyTask> tasks, Worker& worker, std::vector<Fragment>* fragments) const;

 private:
  struct Need;
  struct Op;
  static void check_extent(const Need& need);
  void collect(const CopyTask& task, std::uint32_t number, std::vector<Need>& needs) const;
  void add_strided(const CopyTask& task, RegionView piece, Need need,
                   std::vector<Need>& needs) const;
  void read_group(std::span<const CopyTask> tasks, std::span<Need> group, Worker& worker,
                  std::vector<Fragment>* fragments) const;
  void from_memory(std::span<const CopyTask> tasks, const Need& need, Worker& worker,
                   std::vector<Fragment>* fragments) const;
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
