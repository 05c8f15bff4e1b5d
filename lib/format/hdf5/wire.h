#pragma once
// What the toolkit and the confined executable `tessera-hdf5` say to each other over one socket.
// Shared by both sides; needs nothing but the standard library, as the executable links no toolkit.
//
//   toolkit -> child   Hello, once; then the bytes of every read request, raw
//   child -> toolkit   frames: u8 type, u32 length, payload
//       kRead    u64 offset, u32 length: bytes of the HDF5 file that the child wants
//       kData    the next part of the report
//       kError   u8 ErrorKind, text: the child gives up
//       kEnd     the report is complete
//
// The report is a run of records, each beginning with a Tag (see report.h for the meaning).
// All numbers are little-endian. The toolkit trusts none of it.
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::h5 {

inline constexpr std::uint32_t kWireMagic = 0x35484854;  // "THH5"
inline constexpr std::uint32_t kWireVersion = 1;
inline constexpr std::uint32_t kMaxFrameBytes = 1 << 20;

struct Hello {
  std::uint32_t magic = kWireMagic;
  std::uint32_t version = kWireVersion;
  std::uint64_t file_bytes = 0;
  std::uint64_t max_report_bytes = 0;
  std::uint32_t cpu_seconds = 0;
  std::uint32_t reserved = 0;
};

enum class Frame : std::uint8_t { kRead = 1, kData = 2, kError = 3, kEnd = 4 };
enum class ErrorKind : std::uint8_t { kCorrupt = 1, kUnsupported = 2, kExhausted = 3 };

enum class Tag : std::uint8_t {
  kGroup = 1,
  kDataset = 2,
  kAttribute = 3,
  kLink = 4,
  kText = 5,     // a dataset of strings, as a value
  kProblem = 6,  // an attribute or a dataset that is left out, and why
};

enum class LinkKind : std::uint8_t { kAlias = 1, kSoft = 2, kExternal = 3, kOther = 4 };
enum class LayoutKind : std::uint8_t {
  kContiguous = 1,
  kChunked = 2,
  kCompact = 3,
  kVirtual = 4,
  kExternal = 5,
};
enum class TypeClass : std::uint8_t {
  kInt = 1,
  kUInt = 2,
  kFloat = 3,
  kBool = 4,
  kComplex = 5,  // of two of the described float
  kOpaque = 6,
  kOther = 7,  // with a text that says what
};
enum class SelectionKind : std::uint8_t { kRegular = 1, kAll = 2, kOther = 3 };
enum class ValueTag : std::uint8_t {
  kNone = 0,
  kBool = 1,
  kInt = 2,
  kUInt = 3,
  kReal = 4,
  kComplex = 5,
  kText = 6,
  kList = 7,
};

/// Appends numbers and texts to a byte string.
class WireWriter {
 public:
  template <class T>
  void number(T value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  template <class E>
  void tag(E value) {
    number(static_cast<std::uint8_t>(value));
  }
  void text(std::string_view value) {
    number(static_cast<std::uint32_t>(value.size()));
    bytes_.insert(bytes_.end(), value.begin(), value.end());
  }
  std::vector<char>& bytes() { return bytes_; }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  std::vector<char> bytes_;
};

}  // namespace tessera::h5
