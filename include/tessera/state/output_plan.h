#pragma once
// OutputPlan: what a writer will produce, to the byte, made before the first byte is written. Pure
// data plus one pure function (the renderer). Preflight, resume, splitting over processes,
// byte-identical output and bounded memory all follow from it.
//
// A file is a run of segments without gaps:
//   kLiteral   bytes known now; rendered when written, so that the plan stays small
//   kTensor    one target chunk of one source tensor, dense row-major in its box's or range's ravel
//   kDeferred  bytes that depend on CRC-32s of kTensor segments of the same file (zip descriptors
//              and directories)
#include <tessera/base/bytes.h>
#include <tessera/state/manifest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct Segment {
  enum class Kind : std::uint8_t { kLiteral, kTensor, kDeferred };
  Kind kind = Kind::kLiteral;
  std::uint32_t tensor = 0;  // kTensor: index in the source Manifest::tensors
  std::uint64_t offset = 0;  // bytes in the file
  std::uint64_t length = 0;  // bytes
  /// kTensor: index in OutputPlan::chunks; others: the renderer's own number.
  std::uint64_t payload = 0;
};

struct OutputFile {
  std::string path;  // relative to the output folder; "" for a one-file result
  std::uint64_t size_bytes = 0;
  std::uint64_t first_segment = 0;  // in OutputPlan::segments
  std::uint64_t segment_count = 0;
};

/// CRC-32 (zip polynomial) of the bytes of a kTensor segment, by index in OutputPlan::segments.
using SegmentCrc = std::function<std::uint32_t(std::size_t segment)>;

struct OutputPlan;

/// Makes the bytes of literals and deferred segments. Pure and thread-safe. May refer to the
/// Manifest that was planned, which then outlives it, stays where it is, and changes only where the
/// sources and strides of its chunks lie.
class OutputRenderer {
 public:
  virtual ~OutputRenderer() = default;
  /// Exactly segments[segment].length bytes. `crc` is only asked for kTensor segments of the same
  /// file.
  virtual Bytes render(const OutputPlan& plan, std::size_t segment,
                       const SegmentCrc& crc) const = 0;
  /// A renderer for the same plan with other values for these entries of the state (index, value).
  /// nullptr if one of them would then take another number of bytes, so that a new plan is needed,
  /// or if the format does not support this.
  virtual std::shared_ptr<const OutputRenderer> with_values(
      const OutputPlan&, std::span<const std::pair<std::uint32_t, Value>>) const {
    return nullptr;
  }
};

struct OutputPlan {
  std::string format;
  bool single_file = false;       // the result is one file, not a folder
  std::vector<OutputFile> files;  // in writing order; an index or metadata file comes last
  std::vector<Segment> segments;  // grouped by file, ascending offsets, no gaps
  PackedChunks chunks;            // what kTensor segments hold, in global coordinates
  std::shared_ptr<const OutputRenderer> renderer;
  std::vector<Note> notes;  // what the user should know: dropped ties, renamed keys, ...
  /// Entries of the source that the files do not hold, by the request's policies. Only name, kind
  /// and reason are set; bytes and inner tensors follow from the manifest.
  std::vector<LeftOut> left_out;
  /// Tensors of the source (indices) that the files hold in another form than their own bytes, such
  /// as a weight that is kept as its fp32 master.
  std::vector<std::uint32_t> restated;

  std::uint64_t total_bytes() const;
  /// Throws kInternal unless segments tile every file exactly and tensor segments have their
  /// chunk's size.
  void check(const Manifest& source) const;
};

}  // namespace tessera
