#include "tools/hdf5_helper/type.h"

#include <cstring>
#include <string>

#include "tools/hdf5_helper/vfd.h"

namespace tessera::h5 {
namespace {

std::string member_name(hid_t type, unsigned index) {
  char* name = H5Tget_member_name(type, index);
  if (!name) return {};
  std::string out = name;
  H5free_memory(name);
  return out;
}

std::uint8_t byte_order(hid_t type) {
  switch (H5Tget_order(type)) {
    case H5T_ORDER_LE:
      return 0;
    case H5T_ORDER_BE:
      return 1;
    default:
      return 2;
  }
}

struct FloatFields {
  std::size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
  std::size_t bias = 0;
};

FloatFields float_fields(hid_t type) {
  FloatFields f;
  H5Tget_fields(type, &f.sign, &f.exponent, &f.exponent_bits, &f.mantissa, &f.mantissa_bits);
  f.bias = H5Tget_ebias(type);
  return f;
}

void write_head(WireWriter& out, TypeClass type_class, hid_t type, std::uint8_t order) {
  out.tag(type_class);
  out.number(static_cast<std::uint32_t>(H5Tget_size(type)));
  out.number(order);
}

void write_float(WireWriter& out, hid_t type) {
  const FloatFields f = float_fields(type);
  // Of all numbers but zero and the smallest ones, the first bit of the mantissa is left out.
  const bool plain = H5Tget_precision(type) == 8 * H5Tget_size(type) && H5Tget_offset(type) == 0 &&
                     H5Tget_norm(type) == H5T_NORM_IMPLIED && byte_order(type) != 2;
  for (const std::size_t v :
       {f.sign, f.exponent, f.exponent_bits, f.mantissa, f.mantissa_bits, f.bias})
    out.number(static_cast<std::uint32_t>(v));
  out.number(static_cast<std::uint8_t>(plain));
}

/// Integers whose bits do not fill their bytes are something else.
bool fills_its_bytes(hid_t type) {
  return H5Tget_precision(type) == 8 * H5Tget_size(type) && H5Tget_offset(type) == 0;
}

void write_other(WireWriter& out, hid_t type, std::string_view what) {
  write_head(out, TypeClass::kOther, type, 2);
  out.text(what);
}

void write_integer(WireWriter& out, hid_t type) {
  if (!fills_its_bytes(type)) return write_other(out, type, "an integer of odd width");
  const bool is_signed = H5Tget_class(type) == H5T_INTEGER && H5Tget_sign(type) == H5T_SGN_2;
  write_head(out, is_signed ? TypeClass::kInt : TypeClass::kUInt, type, byte_order(type));
}

void write_compound(WireWriter& out, hid_t type) {
  if (is_complex(type)) {
    const Handle part(H5Tget_member_type(type, 0), H5Tclose);
    write_head(out, TypeClass::kComplex, type, byte_order(part.get()));
    return write_float(out, part.get());
  }
  std::string names;
  const int members = H5Tget_nmembers(type);
  for (int i = 0; i < members && i < 8; ++i)
    names += (i ? ", " : "") + member_name(type, static_cast<unsigned>(i));
  write_other(out, type, "a compound of " + names);
}

}  // namespace

bool is_text(hid_t type) { return H5Tget_class(type) == H5T_STRING; }

bool is_bool(hid_t type) {
  if (H5Tget_class(type) != H5T_ENUM || H5Tget_size(type) != 1 || H5Tget_nmembers(type) != 2)
    return false;
  for (unsigned i = 0; i < 2; ++i) {
    signed char value = -1;
    if (H5Tget_member_value(type, i, &value) < 0) return false;
    const std::string name = member_name(type, i);
    if (!(name == "FALSE" && value == 0) && !(name == "TRUE" && value == 1)) return false;
  }
  return true;
}

bool is_complex(hid_t type) {
#if H5_VERSION_GE(2, 0, 0)
  if (H5Tget_class(type) == H5T_COMPLEX) return false;  // write_type has its own branch
#endif
  if (H5Tget_class(type) != H5T_COMPOUND || H5Tget_nmembers(type) != 2) return false;
  if (member_name(type, 0) != "r" || member_name(type, 1) != "i") return false;
  const Handle re(H5Tget_member_type(type, 0), H5Tclose);
  const Handle im(H5Tget_member_type(type, 1), H5Tclose);
  const std::size_t half = H5Tget_size(re.get());
  return H5Tget_class(re.get()) == H5T_FLOAT && H5Tequal(re.get(), im.get()) > 0 &&
         H5Tget_size(type) == 2 * half && H5Tget_member_offset(type, 0) == 0 &&
         H5Tget_member_offset(type, 1) == half;
}

void write_type(WireWriter& out, hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
    case H5T_BITFIELD:
      return write_integer(out, type);
    case H5T_FLOAT:
      write_head(out, TypeClass::kFloat, type, byte_order(type));
      return write_float(out, type);
    case H5T_ENUM: {
      if (is_bool(type)) return write_head(out, TypeClass::kBool, type, 0);
      const Handle base(H5Tget_super(type), H5Tclose);
      return write_integer(out, base.get());
    }
    case H5T_OPAQUE:
      return write_head(out, TypeClass::kOpaque, type, 0);
    case H5T_COMPOUND:
      return write_compound(out, type);
#if H5_VERSION_GE(2, 0, 0)
    case H5T_COMPLEX: {
      const Handle part(H5Tget_super(type), H5Tclose);
      write_head(out, TypeClass::kComplex, type, byte_order(part.get()));
      return write_float(out, part.get());
    }
#endif
    case H5T_ARRAY:
      return write_other(out, type, "an array type");
    case H5T_VLEN:
      return write_other(out, type, "a variable-length type");
    case H5T_REFERENCE:
      return write_other(out, type, "a reference");
    default:
      return write_other(out, type, "a type without a counterpart");
  }
}

}  // namespace tessera::h5
