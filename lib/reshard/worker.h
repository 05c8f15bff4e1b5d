#pragma once
// Worker: the buffers of one thread that gathers, reused from task to task, and the meter that all
// workers' staged bytes are counted by. A Worker belongs to one thread; the meter is shared.
#include <tessera/base/bytes.h>
#include <tessera/storage/aligned_buffer.h>
#include <tessera/tensor/cast.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "lib/reshard/coded_gate.h"

namespace tessera {

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
  using Decoded = std::map<std::pair<std::uint32_t, std::uint64_t>, Bytes>;
  /// Also where an error ends the work: others may wait for what is held here.
  void drop_decoded();
  void drop_decoded(Decoded::iterator item);
  StagedMeter* meter;
  CodedGate* gate;
  MeteredBuffer read;
  MeteredBuffer private_copy;  // bytes that are changed after reading: swapped, negated
  MeteredBuffer write;
  MeteredBuffer cast;  // a small block, as stored and as cast
  /// Reads what elements are computed from, while this one computes them.
  Worker& for_parts();
  /// Compressed items, by file and offset; the caller drops them when it moves on.
  Decoded decoded;
  std::uint64_t decoded_bytes = 0;
  std::uint64_t most_decoded_bytes = 0;  // before another one is decoded, all are dropped
  Worker* beside = nullptr;  // of the same thread: drops what it holds before this one waits
  /// In `write` of for_parts(): what the elements [first, last) of Manifest::computed[number] are
  /// made of, part behind part.
  struct PartsWindow {
    std::uint32_t computed = ~0U;
    std::int64_t first = 0, last = 0;
    std::vector<ByteView> parts;
  };
  PartsWindow window;
  std::uint64_t bytes_read = 0;
  std::map<std::uint32_t, CastCounts> casts;  // by tensor: what did not fit

 private:
  std::unique_ptr<Worker> parts_;
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

}  // namespace tessera
