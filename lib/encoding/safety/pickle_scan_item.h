#pragma once
// What the scanning machine holds of values.
#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera::scan {

inline constexpr std::size_t kMostNameBytes = 1024;
inline constexpr std::size_t kMostArguments = 16;
inline constexpr std::uint32_t kNoIndex = 0xffffffff;
inline constexpr std::uint32_t kDullTuple = 0, kIntegerTuple = 1;
inline constexpr std::size_t kMostItems = std::size_t{1} << 25;  // held at once: 512 MiB
inline constexpr char kComputed[] = "(the result of a call)";

/// As much of a value as judging takes.
struct Item {
  enum class Kind : std::uint8_t {
    kOther,
    kInteger,
    kText,        // position and length of it, by `spelling`
    kBytes,       // index in blobs
    kTuple,       // index in tuples
    kGlobal,      // index in globals
    kCall,        // what a call of globals[index] gave
    kClass,       // what getattr gave that is allowed as a class
    kPersistent,  // what the loader makes of a persistent id
    kUnknown,     // a memo slot that was never written, a code of the extension registry
  };
  enum class Spelling : std::uint8_t { kRaw, kQuoted, kEscaped, kTooLong };
  Kind kind = Kind::kOther;
  Spelling spelling = Spelling::kRaw;
  std::uint16_t length = 0;
  std::uint32_t index = kNoIndex;
  std::uint64_t position = 0;
};
static_assert(sizeof(Item) == 16);

struct Global {
  std::string module, name;
  std::uint64_t offset = 0;  // first seen
  bool used = false;         // called, made or changed in the pickle at hand
  std::string full() const { return module + "." + name; }
};

struct Tuple {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  bool cut = false;
};

}  // namespace tessera::scan
