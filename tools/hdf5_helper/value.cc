#include "tools/hdf5_helper/value.h"

#include <cstring>
#include <functional>
#include <vector>

#include "tools/hdf5_helper/type.h"
#include "tools/hdf5_helper/vfd.h"

namespace tessera::h5 {
namespace {

using Dims = std::vector<hsize_t>;
/// Reads all elements as `memory_type`.
using ReadAll = std::function<bool(hid_t memory_type, void* out)>;
/// Appends element i.
using WriteOne = std::function<void(std::size_t i)>;

constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;

/// Nested lists by the extents; a scalar stands alone.
void write_nested(WireWriter& out, const Dims& dims, std::size_t dim, std::size_t& next,
                  const WriteOne& one) {
  if (dim == dims.size()) return one(next++);
  out.tag(ValueTag::kList);
  out.number(static_cast<std::uint32_t>(dims[dim]));
  for (hsize_t i = 0; i < dims[dim]; ++i) write_nested(out, dims, dim + 1, next, one);
}

class ValueWriter {
 public:
  ValueWriter(WireWriter& out, hid_t type, hid_t space, ReadAll read, std::string& why)
      : out_(out), type_(type), space_(space), read_(std::move(read)), why_(why) {}

  bool write() {
    if (H5Sget_simple_extent_type(space_) == H5S_NULL) {
      out_.tag(ValueTag::kNone);
      return true;
    }
    const hssize_t numel = H5Sget_simple_extent_npoints(space_);
    const int rank = H5Sget_simple_extent_ndims(space_);
    if (numel < 0 || rank < 0) return no("it has no extent");
    if (numel > kMaxValueNumel) return no("it has more elements than a value may have");
    dims_.resize(static_cast<std::size_t>(rank));
    if (rank > 0) H5Sget_simple_extent_dims(space_, dims_.data(), nullptr);
    // [1048577, 0] is empty and would still be a list per row.
    hsize_t rows = 1;
    for (const hsize_t d : dims_) {
      if (d == 0) break;
      if (d > static_cast<hsize_t>(kMaxValueNumel) / rows)
        return no("it has more rows than a value may have");
      rows *= d;
    }
    numel_ = static_cast<std::size_t>(numel);
    return by_class();
  }

 private:
  bool no(const char* why) {
    why_ = why;
    return false;
  }
  bool by_class() {
    switch (H5Tget_class(type_)) {
      case H5T_STRING:
        return H5Tis_variable_str(type_) > 0 ? variable_text() : fixed_text();
      case H5T_ENUM:
        return is_bool(type_) ? booleans() : integers_of_enum();
      case H5T_INTEGER:
        return integers(H5Tget_sign(type_) == H5T_SGN_NONE);
      case H5T_FLOAT:
        return numbers<double>(H5T_NATIVE_DOUBLE, ValueTag::kReal);
      case H5T_COMPOUND:
        return is_complex(type_) ? complexes() : no("a compound has no form as a value");
      default:
        return no("its type has no form as a value");
    }
  }
  void nested(const WriteOne& one) {
    std::size_t next = 0;
    write_nested(out_, dims_, 0, next, one);
  }
  template <class T>
  bool numbers(hid_t memory_type, ValueTag tag) {
    std::vector<T> values(numel_);
    if (!fetch(memory_type, values.data())) return false;
    nested([&](std::size_t i) {
      out_.tag(tag);
      out_.number(values[i]);
    });
    return true;
  }
  bool integers(bool is_unsigned) {
    return is_unsigned ? numbers<std::uint64_t>(H5T_NATIVE_UINT64, ValueTag::kUInt)
                       : numbers<std::int64_t>(H5T_NATIVE_INT64, ValueTag::kInt);
  }
  bool booleans() {
    std::vector<unsigned char> values(numel_);
    if (!fetch(type_, values.data())) return false;
    nested([&](std::size_t i) {
      out_.tag(ValueTag::kBool);
      out_.number(static_cast<std::uint8_t>(values[i] != 0));
    });
    return true;
  }
  /// Read as it is stored and widened here: the library converts no enum to an integer.
  bool integers_of_enum() {
    const Handle base(H5Tget_super(type_), H5Tclose);
    const std::size_t size = H5Tget_size(type_);
    std::vector<char> values(numel_ * std::max<std::size_t>(size, 8) + 8);
    if (!fetch(type_, values.data())) return false;
    if (H5Tconvert(base.get(), H5T_NATIVE_INT64, numel_, values.data(), nullptr, H5P_DEFAULT) < 0)
      return no("its numbers cannot be converted");
    nested([&](std::size_t i) {
      std::int64_t value = 0;
      std::memcpy(&value, values.data() + 8 * i, 8);
      out_.tag(ValueTag::kInt);
      out_.number(value);
    });
    return true;
  }
  bool complexes() {
    const Handle pair(H5Tcreate(H5T_COMPOUND, 16), H5Tclose);
    H5Tinsert(pair.get(), "r", 0, H5T_NATIVE_DOUBLE);
    H5Tinsert(pair.get(), "i", 8, H5T_NATIVE_DOUBLE);
    std::vector<double> values(2 * numel_);
    if (!fetch(pair.get(), values.data())) return false;
    nested([&](std::size_t i) {
      out_.tag(ValueTag::kComplex);
      out_.number(values[2 * i]);
      out_.number(values[2 * i + 1]);
    });
    return true;
  }
  bool fixed_text() {
    const std::size_t size = H5Tget_size(type_);
    if (size > 0 && numel_ > kMaxTextBytes / size) return no("its text is too long");
    std::vector<char> text(size * numel_ + 1);
    if (!fetch(type_, text.data())) return false;
    const char pad = H5Tget_strpad(type_) == H5T_STR_SPACEPAD ? ' ' : '\0';
    const bool terminated = H5Tget_strpad(type_) == H5T_STR_NULLTERM;
    nested([&](std::size_t i) {
      const char* at = text.data() + size * i;
      std::size_t length = terminated ? strnlen(at, size) : size;
      while (length > 0 && at[length - 1] == pad) --length;
      out_.tag(ValueTag::kText);
      out_.text({at, length});
    });
    return true;
  }
  bool variable_text() {
    std::vector<char*> texts(numel_, nullptr);
    const Handle memory(H5Tcopy(type_), H5Tclose);
    if (!fetch(memory.get(), texts.data())) return false;
    nested([&](std::size_t i) {
      out_.tag(ValueTag::kText);
      out_.text(texts[i] ? std::string_view(texts[i]) : std::string_view());
    });
    H5Dvlen_reclaim(memory.get(), space_, H5P_DEFAULT, texts.data());
    return true;
  }
  bool fetch(hid_t memory_type, void* out) {
    if (numel_ == 0 || read_(memory_type, out)) return true;
    return no("its bytes cannot be read");
  }

  WireWriter& out_;
  hid_t type_;
  hid_t space_;
  ReadAll read_;
  std::string& why_;
  Dims dims_;
  std::size_t numel_ = 0;
};

}  // namespace

bool write_attribute_value(WireWriter& out, hid_t attribute, std::string& why) {
  const Handle type(H5Aget_type(attribute), H5Tclose);
  const Handle space(H5Aget_space(attribute), H5Sclose);
  if (!type || !space) {
    why = "it cannot be opened";
    return false;
  }
  const ReadAll read = [&](hid_t memory_type, void* to) {
    return H5Aread(attribute, memory_type, to) >= 0;
  };
  return ValueWriter(out, type.get(), space.get(), read, why).write();
}

bool write_text_value(WireWriter& out, hid_t dataset, std::string& why) {
  const Handle type(H5Dget_type(dataset), H5Tclose);
  const Handle space(H5Dget_space(dataset), H5Sclose);
  if (!type || !space) {
    why = "it cannot be opened";
    return false;
  }
  const ReadAll read = [&](hid_t memory_type, void* to) {
    return H5Dread(dataset, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, to) >= 0;
  };
  return ValueWriter(out, type.get(), space.get(), read, why).write();
}

}  // namespace tessera::h5
