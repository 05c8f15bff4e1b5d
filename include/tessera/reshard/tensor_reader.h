#pragma once
// TensorReader: the logical content of located tensors as bytes: row-major, unpadded,
// little-endian, whatever the sharding. The same gather that fills output blocks; hash, stat, diff,
// show and verify look at bytes through it.
//
// Thread-safe: one reader may serve several threads; each call stages at most its own block. The
// CRC of every source record is proved that a call reads completely, or completely except for a few
// bytes that no tensor uses.
#include <tessera/base/progress.h>
#include <tessera/state/manifest.h>
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace tessera {

struct TransferOptions {
  std::uint64_t memory_limit_bytes = std::uint64_t{1}
                                     << 30;  // staged tensor bytes, all threads together
  int threads = 1;
  /// Largest size, in bytes, of one write, or of one read of neighbouring ranges. Devices are
  /// fastest with large ones.
  std::uint64_t block_bytes = std::uint64_t{8} << 20;
  /// Memory, in bytes, that decoding one compressed item may take; 0: all that the memory limit
  /// leaves for such items.
  std::uint64_t most_coded_bytes = 0;
  bool check_crc = true;
  Progress* progress = nullptr;
  const CancelToken* cancel = nullptr;
};

class TensorReader {
 public:
  /// `manifest` must be located for the tensors that will be read, and outlive the reader.
  TensorReader(const Manifest& manifest, const Directory& directory, TransferOptions options);
  ~TensorReader();

  /// Ranges of some tensors, read one after the other by one thread. A compressed item is decoded
  /// once for all reads of a pass from the first element to the last. Where there are such items,
  /// the constructor waits until others have left room for them: a thread holds one Reading of a
  /// reader at a time, and of several readers takes them in the same order as other threads do.
  class Reading {
   public:
    /// `beside`: this thread's Reading of another reader, which lives longer; while this one waits
    /// for room to decode, that one gives up what it holds.
    Reading(const TensorReader& reader, std::span<const std::uint32_t> tensors,
            Reading* beside = nullptr);
    ~Reading();
    /// As TensorReader::read, of the tensors given.
    void read(std::uint32_t index, std::int64_t begin, std::int64_t end, MutableBytes out);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

  /// Elements [begin, end) of the row-major ravel of tensor `index`; out.size() = (end - begin) *
  /// element_bytes. Sub-byte types: only the whole tensor. Throws kCorrupt for a hole, a CRC
  /// mismatch or a short file.
  void read(std::uint32_t index, std::int64_t begin, std::int64_t end, MutableBytes out) const;

  /// Elements in a row, of the tensor's ravel, that are best read by one thread: what the largest
  /// of its compressed items covers; 0 where it has none.
  std::int64_t coded_run(std::uint32_t index) const;

  struct Block {
    std::uint32_t tensor = 0;
    std::int64_t first_element = 0;
    std::int64_t numel = 0;
    ByteView bytes;
    bool last = false;  // the tensor's last block; a zero-size tensor has exactly one, empty, block
    int worker = 0;
  };
  /// Streams whole tensors: blocks of one tensor come in order, from one thread; tensors run
  /// concurrently.
  void stream(std::span<const std::uint32_t> tensors,
              const std::function<void(const Block&)>& sink) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
