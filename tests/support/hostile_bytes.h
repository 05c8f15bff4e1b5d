#pragma once
// Hostile bytes made by hand: zip archives that lie, pickles that want to run something.
#include <tessera/base/bytes.h>

#include <string>
#include <vector>

namespace tessera::testing {

/// The little-endian bytes of a number.
template <class T>
std::string le(T value) {
  std::string bytes(sizeof value, '\0');
  store_le(reinterpret_cast<std::byte*>(bytes.data()), value);
  return bytes;
}

struct ZipRecord {
  std::string name;
  std::string content;              // as stored, so compressed where `method` says so
  std::uint16_t method = 0;         // 8: deflate
  std::uint32_t declared_size = 0;  // uncompressed; 0: the content's own
  std::uint32_t declared_crc = 0;   // 0: the content's own
  /// The number of an earlier record whose header and content this one claims for itself.
  std::size_t same_place_as = ~std::size_t{0};
};

/// A zip archive of these records, in order.
std::string zip_of(const std::vector<ZipRecord>& records);
/// A torch.save archive whose data.pkl is `pickle`, with one storage "0" of `storage`.
std::string torch_zip_of(const std::string& pickle, const std::string& storage = {});
std::string deflated(const std::string& content);

/// One pickle per way to name and call `module`.`name` with the argument "true".
std::vector<std::string> hostile_pickles(const std::string& module, const std::string& name);

}  // namespace tessera::testing
