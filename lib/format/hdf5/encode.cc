#include "lib/format/hdf5/encode.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <bit>

#include "lib/encoding/utf8.h"
#include "lib/format/hdf5/names.h"
#include "lib/state/fields.h"

namespace tessera::h5 {
namespace {

// Message types of object headers.
constexpr std::uint16_t kDataspaceMessage = 0x0001;
constexpr std::uint16_t kDatatypeMessage = 0x0003;
constexpr std::uint16_t kFillMessage = 0x0005;
constexpr std::uint16_t kLayoutMessage = 0x0008;
constexpr std::uint16_t kAttributeMessage = 0x000c;
constexpr std::uint16_t kSymbolTableMessage = 0x0011;
constexpr std::uint8_t kConstant = 1;  // flag: never changes

constexpr std::size_t kHeapCollectionBytes = 4096;
// Entries of a symbol node, children of a B-tree node: twice the superblock's two K.
constexpr std::size_t kLeafK = 4;
constexpr std::size_t kInternalK = 16;
constexpr std::size_t kSymbolBytes = 40;

Bytes integer_type(unsigned bytes, bool is_signed) {
  ByteWriter w;
  w.u8(0x10).u8(is_signed ? 8 : 0).u16(0).u32(bytes).u16(0).u16(8 * bytes);
  return w.bytes();
}

Bytes float_type(unsigned bytes, unsigned exponent_bits, unsigned mantissa_bits, unsigned bias) {
  ByteWriter w;
  // Little-endian, implied leading mantissa bit, sign in the last bit.
  w.u8(0x11).u8(0x20).u8(8 * bytes - 1).u8(0).u32(bytes).u16(0).u16(8 * bytes);
  w.u8(mantissa_bits).u8(exponent_bits).u8(0).u8(mantissa_bits).u32(bias);
  return w.bytes();
}

/// h5py's bool: an enum over int8.
Bytes bool_type() {
  ByteWriter w;
  w.u8(0x18).u16(2).u8(0).u32(1).append(integer_type(1, true));
  w.text({"FALSE\0\0\0", 8}).text({"TRUE\0\0\0\0", 8}).u8(0).u8(1);
  return w.bytes();
}

/// h5py's complex: a compound {r, i}.
Bytes complex_type(const Bytes& part, unsigned part_bytes) {
  ByteWriter w;
  w.u8(0x16).u16(2).u8(0).u32(2 * part_bytes);
  for (const unsigned member : {0U, 1U}) {
    w.text(member == 0 ? "r" : "i").zeros(7).u32(member * part_bytes);
    w.zeros(4 + 4 + 4 + 16);  // no dimensions of its own
    w.append(part);
  }
  return w.bytes();
}

Bytes text_type() {
  ByteWriter w;
  w.u8(0x19).u8(1).u8(1).u8(0).u32(16).append(integer_type(1, false));
  return w.bytes();
}

Bytes dataspace(std::span<const std::int64_t> extents) {
  ByteWriter w;
  w.u8(1).u8(static_cast<unsigned>(extents.size())).zeros(6);
  for (const std::int64_t extent : extents) w.u64(static_cast<std::uint64_t>(extent));
  return w.bytes();
}

/// Object header of version 1 in one piece. `offsets`: of each message's data in it.
Bytes object_header(const std::vector<Message>& messages, std::vector<std::size_t>* offsets) {
  ByteWriter body;
  for (const Message& message : messages) {
    const std::size_t padded = (message.data.size() + 7) / 8 * 8;
    body.u16(message.type).u16(padded).u8(message.flags).zeros(3);
    if (offsets) offsets->push_back(16 + body.size());
    body.append(message.data).align();
  }
  ByteWriter w;
  w.u8(1).u8(0).u16(messages.size()).u32(1).u32(body.size()).zeros(4).append(body.bytes());
  return w.bytes();
}

std::uint64_t bit_pattern(double value) { return std::bit_cast<std::uint64_t>(value); }

struct Elements {
  Bytes type;
  Bytes data;
};

Elements elements_of(Image& image, const ValueList& items) {
  Elements out;
  ByteWriter data;
  switch (items.front().kind()) {
    case Value::Kind::kBool:
      out.type = bool_type();
      for (const Value& v : items) data.u8(v.as_bool());
      break;
    case Value::Kind::kInt:
      out.type = integer_type(8, true);
      for (const Value& v : items) data.number(v.as_int());
      break;
    case Value::Kind::kFloat:
      out.type = float_type(8, 11, 52, 1023);
      for (const Value& v : items) data.u64(bit_pattern(v.as_real()));
      break;
    default:
      out.type = text_type();
      for (const Value& v : items) data.append(image.add_text(v.as_string()));
      break;
  }
  out.data = std::move(data.bytes());
  return out;
}

/// UTF-8 without NUL, and without the lone surrogates that Python lets through.
bool is_clean_text(std::string_view text) {
  for (std::size_t i = 0; i + 1 < text.size(); ++i)
    if (text[i] == '\xed' && (text[i + 1] & '\x20') != 0) return false;
  return text.find('\0') == text.npos && is_python_utf8(text);
}

bool is_plain(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kBool:
    case Value::Kind::kInt:
    case Value::Kind::kFloat:
      return true;
    case Value::Kind::kString:
      return value.as_string().size() <= kMaxAttributeText && is_clean_text(value.as_string());
    default:
      return false;
  }
}

/// One level of a group's B-tree: address of each node and the heap offset of its last name.
struct TreeChild {
  std::uint64_t address = 0;
  std::uint64_t last_name = 0;
};

std::uint64_t add_tree_node(Image& image, unsigned level, std::uint64_t first_key,
                            std::span<const TreeChild> children) {
  ByteWriter w;
  w.text("TREE").u8(0).u8(level).u16(children.size()).u64(kUndefinedAddress).u64(kUndefinedAddress);
  w.u64(first_key);
  for (const TreeChild& child : children) w.u64(child.address).u64(child.last_name);
  w.zeros((2 * kInternalK - children.size()) * 16);  // nodes have one size
  return image.add(w.bytes());
}

/// Nodes of one level know their neighbours.
void join_siblings(Image& image, const std::vector<TreeChild>& nodes) {
  for (std::size_t i = 0; i + 1 < nodes.size(); ++i) {
    image.put_u64(nodes[i].address + 16, nodes[i + 1].address);
    image.put_u64(nodes[i + 1].address + 8, nodes[i].address);
  }
}

}  // namespace

std::uint64_t Image::allocate(std::size_t size) {
  const std::uint64_t at = bytes_.size();
  bytes_.resize((at + size + 7) / 8 * 8);
  return at;
}
std::uint64_t Image::add(ByteView block) {
  const std::uint64_t at = allocate(block.size());
  put(at, block);
  return at;
}
void Image::put(std::uint64_t address, ByteView bytes) {
  TESSERA_CHECK(address + bytes.size() <= bytes_.size());
  std::ranges::copy(bytes, bytes_.begin() + static_cast<std::ptrdiff_t>(address));
}
void Image::put_u64(std::uint64_t address, std::uint64_t value) {
  ByteWriter w;
  put(address, w.u64(value).bytes());
}

Bytes Image::add_text(std::string_view text) {
  ByteWriter reference;
  if (text.empty()) return reference.zeros(16).bytes();
  const std::size_t needed = 16 + (text.size() + 7) / 8 * 8;
  // Room for the object that stands for what is left free.
  if (heap_ == 0 || heap_used_ + needed + 16 > kHeapCollectionBytes) {
    heap_ = allocate(kHeapCollectionBytes);
    heap_used_ = 16;
    heap_objects_ = 0;
    ByteWriter head;
    put(heap_, head.text("GCOL").u8(1).zeros(3).u64(kHeapCollectionBytes).bytes());
  }
  ByteWriter object;
  object.u16(++heap_objects_).u16(0).zeros(4).u64(text.size()).text(text).align();
  put(heap_ + heap_used_, object.bytes());
  heap_used_ += needed;
  ByteWriter rest;
  put(heap_ + heap_used_, rest.zeros(8).u64(kHeapCollectionBytes - heap_used_).bytes());
  return reference.u32(text.size()).u64(heap_).u32(heap_objects_).bytes();
}

bool needs_name(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kUInt16:
    case DType::kInt16:
    case DType::kUInt32:
    case DType::kInt32:
    case DType::kUInt64:
    case DType::kInt64:
    case DType::kFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kComplex32:
    case DType::kComplex64:
    case DType::kComplex128:
      return false;
    default:
      return true;
  }
}

Bytes encode_dtype(DType dtype) {
  const Bytes half = float_type(2, 5, 10, 15);
  const Bytes single = float_type(4, 8, 23, 127);
  const Bytes twice = float_type(8, 11, 52, 1023);
  TESSERA_CHECK(!is_quantized(dtype) && !is_sub_byte(dtype));  // the plan refuses them by name
  const auto bytes = static_cast<unsigned>(element_bytes(dtype));
  if (needs_name(dtype)) return integer_type(bytes, false);
  switch (dtype) {
    case DType::kBool:
      return bool_type();
    case DType::kFloat16:
      return half;
    case DType::kFloat32:
      return single;
    case DType::kFloat64:
      return twice;
    case DType::kComplex32:
      return complex_type(half, 2);
    case DType::kComplex64:
      return complex_type(single, 4);
    case DType::kComplex128:
      return complex_type(twice, 8);
    default: {
      const bool is_signed = dtype == DType::kInt8 || dtype == DType::kInt16 ||
                             dtype == DType::kInt32 || dtype == DType::kInt64;
      return integer_type(bytes, is_signed);
    }
  }
}

Bytes dataset_header(const TensorSpec& spec, const std::vector<Message>& attributes,
                     std::size_t& address_at) {
  if (spec.shape.rank() > kMaxHdf5Rank)
    fail(Code::kUnsupported,
         fmt::format("hdf5 holds at most {} dimensions, not {}", kMaxHdf5Rank, spec.shape.rank()));
  ByteWriter fill, layout;
  fill.u8(2).u8(2).u8(2).u8(1).u32(0);  // allocated late, written if set, defined, zero
  layout.u8(3).u8(1).u64(kUndefinedAddress).u64(static_cast<std::uint64_t>(spec.size_bytes()));
  std::vector<Message> messages;
  messages.push_back({kDataspaceMessage, 0, dataspace(spec.shape.extents())});
  messages.push_back({kDatatypeMessage, kConstant, encode_dtype(spec.dtype)});
  messages.push_back({kFillMessage, kConstant, fill.bytes()});
  messages.push_back({kLayoutMessage, 0, layout.bytes()});
  messages.insert(messages.end(), attributes.begin(), attributes.end());
  std::vector<std::size_t> offsets;
  Bytes header = object_header(messages, &offsets);
  address_at = offsets[3] + 2;
  return header;
}

Bytes group_header(std::uint64_t btree, std::uint64_t heap,
                   const std::vector<Message>& attributes) {
  ByteWriter table;
  std::vector<Message> messages{{kSymbolTableMessage, 0, table.u64(btree).u64(heap).bytes()}};
  messages.insert(messages.end(), attributes.begin(), attributes.end());
  return object_header(messages, nullptr);
}

bool fits_attribute(const Value& value) {
  if (!is_sequence(value)) return is_plain(value);
  const ValueList& items = value.as_list();
  return !items.empty() && items.size() <= kMaxAttributeItems &&
         std::ranges::all_of(items, [&](const Value& item) {
           return item.kind() == items.front().kind() && is_plain(item);
         });
}

Message attribute_message(Image& image, std::string_view name, const Value& value) {
  const bool sequence = is_sequence(value);
  const Elements elements = elements_of(image, sequence ? value.as_list() : ValueList{value});
  const std::int64_t count[] = {sequence ? static_cast<std::int64_t>(value.as_list().size()) : 1};
  const Bytes space = dataspace(std::span<const std::int64_t>(count, sequence ? 1 : 0));
  ByteWriter w;
  // Version 3: nothing is padded, and the name's character set is stored (UTF-8).
  w.u8(3).u8(0).u16(name.size() + 1).u16(elements.type.size()).u16(space.size()).u8(1);
  w.text(name).u8(0).append(elements.type).append(space).append(elements.data);
  return {kAttributeMessage, 0, w.bytes()};
}

GroupPlaces add_links(Image& image,
                      const std::vector<std::pair<std::string, std::uint64_t>>& links) {
  ByteWriter names;
  names.zeros(8);  // offset 0: the empty name, below all others
  std::vector<std::uint64_t> name_at;
  for (const auto& [name, address] : links) {
    name_at.push_back(names.size());
    names.text(name).u8(0).align();
  }
  GroupPlaces places;
  places.heap = image.allocate(32);
  const std::uint64_t segment = image.add(names.bytes());
  ByteWriter head;
  constexpr std::uint64_t kNoFreeBlock = 1;
  head.text("HEAP").zeros(4).u64(names.size()).u64(kNoFreeBlock).u64(segment);
  image.put(places.heap, head.bytes());

  std::vector<TreeChild> level;
  for (std::size_t i = 0; i < links.size(); i += 2 * kLeafK) {
    const std::size_t end = std::min(links.size(), i + 2 * kLeafK);
    ByteWriter w;
    w.text("SNOD").u8(1).u8(0).u16(end - i);
    for (std::size_t l = i; l < end; ++l)
      w.u64(name_at[l]).u64(links[l].second).zeros(kSymbolBytes - 16);
    w.zeros((2 * kLeafK - (end - i)) * kSymbolBytes);
    level.push_back({image.add(w.bytes()), name_at[end - 1]});
  }
  for (unsigned depth = 0;; ++depth) {
    std::vector<TreeChild> above;
    std::uint64_t first_key = 0;
    for (std::size_t i = 0; i < std::max<std::size_t>(level.size(), 1); i += 2 * kInternalK) {
      const std::size_t end = std::min(level.size(), i + 2 * kInternalK);
      const std::span<const TreeChild> children(level.begin() + static_cast<std::ptrdiff_t>(i),
                                                level.begin() + static_cast<std::ptrdiff_t>(end));
      const std::uint64_t last = children.empty() ? 0 : children.back().last_name;
      above.push_back({add_tree_node(image, depth, first_key, children), last});
      first_key = last;
    }
    join_siblings(image, above);
    if (above.size() == 1) {
      places.btree = above[0].address;
      return places;
    }
    level = std::move(above);
  }
}

Bytes superblock(std::uint64_t file_bytes, std::uint64_t root, const GroupPlaces& places) {
  ByteWriter w;
  w.text(kSignature).u8(0).u8(0).u8(0).u8(0).u8(0).u8(8).u8(8).u8(0);
  w.u16(kLeafK).u16(kInternalK).u32(0);
  w.u64(0).u64(kUndefinedAddress).u64(file_bytes).u64(kUndefinedAddress);
  constexpr std::uint32_t kCachesGroup = 1;
  w.u64(0).u64(root).u32(kCachesGroup).u32(0).u64(places.btree).u64(places.heap);
  TESSERA_CHECK(w.size() == kSuperblockBytes);
  return w.bytes();
}

}  // namespace tessera::h5
