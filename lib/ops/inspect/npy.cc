#include "lib/ops/inspect/npy.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

namespace tessera {
namespace {

std::string descr(DType dtype, std::string& note) {
  switch (dtype) {
    case DType::kBool:
      return "|b1";
    case DType::kUInt8:
      return "|u1";
    case DType::kInt8:
      return "|i1";
    case DType::kUInt16:
      return "<u2";
    case DType::kInt16:
      return "<i2";
    case DType::kUInt32:
      return "<u4";
    case DType::kInt32:
      return "<i4";
    case DType::kUInt64:
      return "<u8";
    case DType::kInt64:
      return "<i8";
    case DType::kFloat16:
      return "<f2";
    case DType::kFloat32:
      return "<f4";
    case DType::kFloat64:
      return "<f8";
    case DType::kComplex64:
      return "<c8";
    case DType::kComplex128:
      return "<c16";
    default:
      break;
  }
  if (is_sub_byte(dtype))
    fail(Code::kUnsupported,
         fmt::format("{} cannot be written as .npy: its elements share bytes", torch_name(dtype)));
  const int width = element_bytes(dtype);
  note = fmt::format("{} stored as uint{} bit patterns", torch_name(dtype), 8 * width);
  return width == 1 ? "|u1" : fmt::format("<u{}", width);
}

}  // namespace

Bytes make_npy(DType dtype, const std::vector<std::int64_t>& shape, ByteView elements,
               std::string& note) {
  std::string extents;
  for (std::int64_t extent : shape) extents += fmt::format("{}, ", extent);
  if (shape.size() > 1) extents.resize(extents.size() - 2);
  if (shape.size() == 1) extents.pop_back();  // (3,)
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                                   descr(dtype, note), extents);
  const bool long_header = header.size() + 1 + 10 + 64 > 65535;
  const std::size_t fixed = long_header ? 12 : 10;
  header.append(64 - (fixed + header.size() + 1) % 64, ' ');
  header += '\n';
  std::string head = std::string("\x93NUMPY", 6) + (long_header ? '\2' : '\1') + '\0';
  for (std::size_t i = 0; i < fixed - 8; ++i)
    head += static_cast<char>(header.size() >> (8 * i) & 0xff);
  head += header;
  Bytes file(as_bytes(head).begin(), as_bytes(head).end());
  file.insert(file.end(), elements.begin(), elements.end());
  return file;
}

}  // namespace tessera
