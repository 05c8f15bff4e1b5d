#pragma once
// ZstdEncoder: one zstd frame made piece by piece, whose header says how large the content is: what
// decoders need that take a frame at once (Python's zstandard). The same content gives the same bytes,
// however it is cut. Not thread-safe.
#include <tessera/base/bytes.h>

#include <cstdint>
#include <memory>

namespace tessera {

class ZstdEncoder {
 public:
  /// `content_bytes`: of all pieces. Made for content that is mostly zeros, with elements of so many
  /// bytes between. Of one byte they shrink least, and are given more time.
  ZstdEncoder(std::uint64_t content_bytes, std::uint64_t element_bytes);
  ~ZstdEncoder();

  /// Appends to `out` what is ready.
  void add(ByteView in, Bytes& out);
  /// The rest of the frame, after content_bytes were added.
  void finish(Bytes& out);

 private:
  struct Context;
  void run(ByteView in, bool last, Bytes& out);
  std::unique_ptr<Context> context_;
};

}  // namespace tessera
