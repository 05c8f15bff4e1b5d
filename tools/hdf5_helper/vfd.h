#pragma once
// A virtual file driver for libhdf5 over the channel: the one file there is. Any other name that
// the library asks for (external links, sources of virtual datasets) does not open.
#include <hdf5.h>

#include <cstdint>
#include <optional>

#include "tools/hdf5_helper/channel.h"

namespace tessera::h5 {

/// Closes an HDF5 identifier when it goes out of scope.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle(hid_t id, Close close) : id_(id), close_(close) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }

 private:
  hid_t id_;
  Close close_;
};

/// Opens the file behind the channel. The channel outlives every identifier.
hid_t open_file(Channel& channel);

/// A raw read the library wanted to do, while `watch` was in force.
struct RawRead {
  std::uint64_t address = 0;  // absolute, the user block included
  std::uint64_t length = 0;
};

/// While one lives, reads of raw data are noted and not done: how chunk addresses are learned at
/// the price of one index lookup each.
class RawReadWatch {
 public:
  RawReadWatch();
  ~RawReadWatch();
  /// The one read since the last call; nullopt for none or several.
  std::optional<RawRead> take();
};

}  // namespace tessera::h5
