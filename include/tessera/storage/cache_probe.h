#pragma once
// CacheProbe: what a file that reads through the page cache may tell about it. A ReadFile that can
// tell is one too (ask by dynamic_cast); one that cannot is read as if it came from the device.
#include <cstdint>

namespace tessera {

class CacheProbe {
 public:
  virtual ~CacheProbe() = default;
  /// True where reading [offset, offset + length) now would wait for no device. Thread-safe.
  virtual bool lies_in_cache(std::uint64_t offset, std::uint64_t length) const = 0;
};

}  // namespace tessera
