#pragma once
// CacheProbe: whether bytes of a file are in the page cache. A ReadFile that knows also implements
// CacheProbe (find out by dynamic_cast); any other is read as if it came from the device.
#include <cstdint>

namespace tessera {

class CacheProbe {
 public:
  virtual ~CacheProbe() = default;
  /// True where reading [offset, offset + length) now would wait for no device. Thread-safe.
  virtual bool lies_in_cache(std::uint64_t offset, std::uint64_t length) const = 0;
};

}  // namespace tessera
