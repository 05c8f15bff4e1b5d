#pragma once
// HDF5's own bytes, for the part of the format that we write: object headers of version 1 and their
// messages, symbol-table groups, global heaps. Layouts: docs/formats/hdf5.md and the HDF5 File
// Format Specification 1.1 (superblock 0). Pure.
#include <tessera/base/bytes.h>
#include <tessera/state/value.h>
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::h5 {

inline constexpr std::uint64_t kUndefinedAddress = ~std::uint64_t{0};
inline constexpr int kMaxHdf5Rank = 32;
inline constexpr std::size_t kMaxAttributeText = 2048;
inline constexpr std::size_t kMaxAttributeItems = 1024;

/// Grows a byte string; numbers are little-endian.
class ByteWriter {
 public:
  template <class T>
  ByteWriter& number(T value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    store_le(bytes_.data() + at, value);
    return *this;
  }
  ByteWriter& u8(unsigned v) { return number(static_cast<std::uint8_t>(v)); }
  ByteWriter& u16(std::size_t v) { return number(static_cast<std::uint16_t>(v)); }
  ByteWriter& u32(std::size_t v) { return number(static_cast<std::uint32_t>(v)); }
  ByteWriter& u64(std::uint64_t v) { return number(v); }
  ByteWriter& zeros(std::size_t n) {
    bytes_.resize(bytes_.size() + n);
    return *this;
  }
  ByteWriter& text(std::string_view v) { return append(as_bytes(v)); }
  ByteWriter& append(ByteView v) {
    bytes_.insert(bytes_.end(), v.begin(), v.end());
    return *this;
  }
  ByteWriter& align(std::size_t to = 8) { return zeros((to - bytes_.size() % to) % to); }
  std::size_t size() const { return bytes_.size(); }
  Bytes& bytes() { return bytes_; }

 private:
  Bytes bytes_;
};

/// The metadata at the front of a file: blocks at rising, aligned addresses.
class Image {
 public:
  /// Room for `size` bytes, all zero; its address.
  std::uint64_t allocate(std::size_t size);
  std::uint64_t add(ByteView block);
  void put(std::uint64_t address, ByteView bytes);
  void put_u64(std::uint64_t address, std::uint64_t value);
  std::size_t size() const { return bytes_.size(); }
  Bytes take() { return std::move(bytes_); }

  /// A text in a global heap: what a variable-length string stores of it (16 bytes).
  Bytes add_text(std::string_view text);

 private:
  Bytes bytes_;
  std::uint64_t heap_ = 0;  // the collection that is being filled
  std::size_t heap_used_ = 0;
  unsigned heap_objects_ = 0;
};

/// The datatype a tensor gets; kUnsupported for those without one. Types that HDF5 lacks are
/// unsigned integers of the same width: `needs_name` says that an attribute must name them.
Bytes encode_dtype(DType dtype);
bool needs_name(DType dtype);

struct Message {
  std::uint16_t type = 0;
  std::uint8_t flags = 0;
  Bytes data;
};

/// A dataset's messages. `address_at`: where in the header the address of its data goes.
Bytes dataset_header(const TensorSpec& spec, const std::vector<Message>& attributes,
                     std::size_t& address_at);
Bytes group_header(std::uint64_t btree, std::uint64_t heap, const std::vector<Message>& attributes);

/// Has this value a form as an attribute? Bool, int, float, short text, or a short list or tuple of
/// one of these.
bool fits_attribute(const Value& value);
/// Precondition: fits_attribute. Texts go to the image's heap.
Message attribute_message(Image& image, std::string_view name, const Value& value);

/// B-tree, local heap and symbol nodes of a group whose links are sorted by name.
struct GroupPlaces {
  std::uint64_t btree = 0;
  std::uint64_t heap = 0;
};
GroupPlaces add_links(Image& image,
                      const std::vector<std::pair<std::string, std::uint64_t>>& links);

inline constexpr std::size_t kSuperblockBytes = 96;
Bytes superblock(std::uint64_t file_bytes, std::uint64_t root, const GroupPlaces& places);

}  // namespace tessera::h5
