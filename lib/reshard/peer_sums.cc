#include "lib/reshard/peer_sums.h"

#include <tessera/base/error.h>

#include <algorithm>
#include <type_traits>

namespace tessera {

namespace {

/// All processes are the same program on the same kind of machine: plain memory does.
class PeerWriter {
 public:
  template <class T>
  void list(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    number(values.size());
    const auto bytes = std::as_bytes(std::span(values));
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  void number(std::uint64_t n) {
    const auto bytes = std::as_bytes(std::span(&n, 1));
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  Bytes take() { return std::move(out_); }

 private:
  Bytes out_;
};

class PeerReader {
 public:
  explicit PeerReader(ByteView bytes) : rest_(bytes) {}

  std::uint64_t number() { return load_le<std::uint64_t>(next(sizeof(std::uint64_t)).data()); }
  template <class T>
  std::vector<T> list() {
    const std::uint64_t count = number();
    if (count > rest_.size() / sizeof(T)) too_short();
    std::vector<T> values(static_cast<std::size_t>(count));
    const ByteView bytes = next(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

 private:
  [[noreturn]] static void too_short() {
    fail(Code::kInternal, "a message from another rank ends too early");
  }
  ByteView next(std::size_t length) {
    if (length > rest_.size()) too_short();
    const ByteView taken = rest_.first(length);
    rest_ = rest_.subspan(length);
    return taken;
  }
  ByteView rest_;
};

struct CastEntry {
  std::uint64_t tensor = 0;
  CastCounts counts;
};

}  // namespace

Bytes PeerSums::encode() const {
  PeerWriter out;
  out.list(segments);
  out.list(written);
  out.list(files);
  out.list(reads);
  return out.take();
}

PeerSums PeerSums::decode(ByteView bytes) {
  PeerReader in(bytes);
  PeerSums sums;
  sums.segments = in.list<SegmentCrc>();
  sums.written = in.list<std::uint64_t>();
  sums.files = in.list<FileCrc>();
  sums.reads = in.list<RecordProver::ReadPart>();
  return sums;
}

Bytes encode_result(const TransferResult& result, const std::vector<std::uint32_t>& files) {
  PeerWriter out;
  out.list(std::vector<std::uint64_t>{result.bytes_read, result.bytes_written, result.proved_bytes,
                                      result.peak_staged_bytes});
  std::vector<CastEntry> casts;
  for (const auto& [tensor, counts] : result.casts) casts.push_back({tensor, counts});
  out.list(casts);
  out.number(files.size());
  for (const std::uint32_t file : files) {
    out.number(file);
    out.list(result.crc32_per_mib[file]);
  }
  return out.take();
}

void add_result(ByteView bytes, TransferResult& result) {
  PeerReader in(bytes);
  const std::vector<std::uint64_t> counts = in.list<std::uint64_t>();
  TESSERA_CHECK(counts.size() == 4);
  result.bytes_read += counts[0];
  result.bytes_written += counts[1];
  result.proved_bytes += counts[2];
  result.peak_staged_bytes = std::max(result.peak_staged_bytes, counts[3]);
  for (const CastEntry& cast : in.list<CastEntry>()) {
    CastCounts& all = result.casts[static_cast<std::uint32_t>(cast.tensor)];
    all.overflow_to_inf += cast.counts.overflow_to_inf;
    all.underflow_to_zero += cast.counts.underflow_to_zero;
  }
  for (std::uint64_t files = in.number(); files > 0; --files) {
    const std::uint64_t file = in.number();
    TESSERA_CHECK(file < result.crc32_per_mib.size());
    result.crc32_per_mib[file] = in.list<std::uint32_t>();
  }
}

}  // namespace tessera
