#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/large_array.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/safetensors_header.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "lib/encoding/file_kinds.h"

namespace tessera {
namespace {

constexpr std::string_view kMetadataName = "__metadata__";

/// { "name": {"dtype": s, "shape": [n..], "data_offsets": [b, e]}, "__metadata__": {s: s} }, event
/// by event: a header of 100 MB never becomes a tree.
class HeaderHandler : public JsonHandler {
 public:
  SafetensorsHeader take() {
    if (!saw_object_) fail(Code::kCorrupt, "safetensors header is not a JSON object");
    return std::move(header_);
  }

  void begin_object() override {
    saw_object_ = true;
    ++depth_;
    if (depth_ == 1) return;
    if (depth_ > 2 || in_array_) unexpected();
    in_metadata_ = name_ == kMetadataName;
    tensor_ = {};
    seen_ = 0;
    offsets_.clear();
    shape_.clear();
  }
  void key(std::string&& text) override { (depth_ == 1 ? name_ : field_) = std::move(text); }
  void end_object() override {
    if (depth_-- == 2 && !in_metadata_) in_tensor(name_, [&] { finish_tensor(); });
  }
  void begin_array() override {
    if (depth_ != 2 || in_metadata_ || in_array_ || (field_ != "shape" && field_ != "data_offsets"))
      unexpected();
    in_array_ = true;
    seen_ |= field_ == "shape" ? kShape : kOffsets;
  }
  void end_array() override { in_array_ = false; }
  void scalar(Value value) override {
    if (depth_ != 2) unexpected();
    if (in_metadata_) {
      if (!value.is_string())
        fail(Code::kCorrupt,
             fmt::format("safetensors __metadata__: \"{:.100}\" is not a string", field_));
      header_.metadata.emplace(field_, value.as_string());
    } else if (in_array_) {
      (field_ == "shape" ? shape_ : offsets_).push_back(extent(value));
    } else if (field_ == "dtype" && value.is_string()) {
      set_dtype(value.as_string());
    } else {
      unexpected();
    }
  }

 private:
  static constexpr int kDType = 1, kShape = 2, kOffsets = 4;

  [[noreturn]] void unexpected() const {
    if (depth_ == 0) fail(Code::kCorrupt, "safetensors header is not a JSON object");
    fail(Code::kCorrupt,
         fmt::format("safetensors header: unexpected content at \"{:.100}\"{}{:.60}", name_,
                     depth_ > 1 ? ", field " : "", depth_ > 1 ? field_ : std::string()));
  }
  std::int64_t extent(const Value& value) const {
    if (!value.is_int() || value.as_int() < 0)
      in_tensor(name_, [&] {
        fail(Code::kCorrupt,
             fmt::format("{} holds a number that is negative or not whole", field_));
      });
    return value.as_int();
  }
  void set_dtype(const std::string& text) {
    const auto dtype = dtype_from_safetensors_name(text);
    if (!dtype)
      in_tensor(name_, [&] {
        fail(Code::kUnsupported, fmt::format("dtype \"{:.40}\" is not known", text));
      });
    tensor_.spec.dtype = *dtype;
    seen_ |= kDType;
  }
  void finish_tensor() {
    if (seen_ != (kDType | kShape | kOffsets))
      fail(Code::kCorrupt, "dtype, shape or data_offsets is missing");
    if (offsets_.size() != 2) fail(Code::kCorrupt, "data_offsets must be two numbers");
    tensor_.spec.shape = Shape::checked(shape_);
    tensor_.begin = static_cast<std::uint64_t>(offsets_[0]);
    tensor_.end = static_cast<std::uint64_t>(offsets_[1]);
    if (tensor_.end < tensor_.begin)
      fail(Code::kCorrupt,
           fmt::format("data_offsets [{},{}) run backwards", tensor_.begin, tensor_.end));
    const auto whole_bits = checked_mul(tensor_.spec.shape.numel(),
                                        static_cast<std::int64_t>(bits(tensor_.spec.dtype)));
    if (!whole_bits) fail(Code::kCorrupt, "the size in bits overflows");
    if (*whole_bits % 8 != 0)
      fail(Code::kCorrupt, fmt::format("{} bits do not fill whole bytes", *whole_bits));
    const auto size = static_cast<std::uint64_t>(*whole_bits / 8);
    if (tensor_.end - tensor_.begin != size)
      fail(Code::kCorrupt, fmt::format("data_offsets [{},{}) disagree with {} ({} bytes)",
                                       tensor_.begin, tensor_.end, tensor_.spec.to_string(), size));
    tensor_.name = name_;
    grow_large(header_.tensors, 1);
    header_.tensors.push_back(std::move(tensor_));
  }

  SafetensorsHeader header_;
  SafetensorsTensor tensor_;
  std::string name_, field_;
  std::vector<std::int64_t> shape_, offsets_;
  int depth_ = 0, seen_ = 0;
  bool in_array_ = false, in_metadata_ = false, saw_object_ = false;
};

/// Ranges, sorted, start at 0, follow each other and end with the data. Sets what the file lacks,
/// or has too much, at its end.
void check_tiling(SafetensorsHeader& header, std::uint64_t data_bytes, bool tolerate) {
  std::vector<const SafetensorsTensor*> order;
  order.reserve(header.tensors.size());
  for (const auto& tensor : header.tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::uint64_t at = 0;
  for (const SafetensorsTensor* tensor : order) {
    in_tensor(tensor->name, [&] {
      if (tensor->end > data_bytes && !tolerate)
        fail(Code::kCorrupt,
             fmt::format("data_offsets [{},{}) leave the file, which has {} bytes of data",
                         tensor->begin, tensor->end, data_bytes));
      if (tensor->begin > at)
        fail(Code::kCorrupt, fmt::format("a hole: bytes [{},{}) of the data belong to no tensor",
                                         at, tensor->begin));
      if (tensor->begin < at)
        fail(Code::kCorrupt, fmt::format("data_offsets [{},{}) overlap another tensor's",
                                         tensor->begin, tensor->end));
    });
    at = tensor->end;
  }
  if (at < data_bytes && !tolerate)
    fail(Code::kCorrupt, fmt::format("{} bytes follow the last tensor", data_bytes - at));
  header.missing_bytes = at > data_bytes ? at - data_bytes : 0;
  header.trailing_bytes = data_bytes > at ? data_bytes - at : 0;
}

/// safetensors sorts by its own list of types, last one first, so that alignment never gets worse
/// along the file.
std::size_t dtype_order(DType dtype) {
  static constexpr std::array<std::string_view, 22> kOrder = {
      "U64", "I64", "F64",     "C64",         "F32",         "U32",     "I32",     "BF16",
      "F16", "U16", "I16",     "F8_E5M2FNUZ", "F8_E4M3FNUZ", "F8_E8M0", "F8_E4M3", "F8_E5M2",
      "I8",  "U8",  "F6_E3M2", "F6_E2M3",     "F4",          "BOOL"};
  const auto found = std::find(kOrder.begin(), kOrder.end(), safetensors_name(dtype).value());
  return static_cast<std::size_t>(found - kOrder.begin());
}

std::uint64_t header_length(const ByteWindow& window) {
  if (window.length < 8)
    fail(Code::kCorrupt, fmt::format("{} bytes are too few for a safetensors file", window.length));
  std::array<std::byte, 8> raw;
  window.read(0, raw);
  const auto n = load_le<std::uint64_t>(raw.data());
  if (n > kMaxSafetensorsHeaderBytes)
    fail(Code::kCorrupt, fmt::format("safetensors header of {} bytes; {} are allowed", n,
                                     kMaxSafetensorsHeaderBytes));
  if (n > window.length - 8)
    fail(Code::kCorrupt,
         fmt::format("safetensors header of {} bytes in a file of {}", n, window.length));
  return n;
}

/// What has no header may be of another kind: a pointer of Git LFS, a web page.
std::uint64_t length_or_kind(const ByteWindow& window) {
  try {
    return header_length(window);
  } catch (const Error&) {
    if (const auto kind = other_kind_of(window)) fail(Code::kUnsupported, kind->what, kind->hint);
    throw;
  }
}

std::string quoted(const std::string& text) { return dump_json(Value::string(text)); }

void check_tensor_name(const std::string& name) {
  if (name == kMetadataName)
    fail(Code::kUnsupported, "safetensors reserves the name __metadata__",
         "rename the tensor (--rename)");
  if (name.find('\0') != std::string::npos || !is_valid_utf8(name))
    fail(Code::kUnsupported,
         fmt::format("safetensors cannot hold the name \"{}\"", printable(name)),
         "rename the tensor (--rename)");
}

}  // namespace

bool looks_like_safetensors(const ByteWindow& window) {
  if (window.length < 10) return false;
  std::array<std::byte, 9> raw;
  window.read(0, raw);
  const auto n = load_le<std::uint64_t>(raw.data());
  return raw[8] == std::byte{'{'} && n >= 2 && n <= kMaxSafetensorsHeaderBytes;
}

SafetensorsHeader parse_safetensors_header(ByteView json, std::uint64_t data_bytes, bool tolerate) {
  if (json.empty() || json[0] != std::byte{'{'})
    fail(Code::kCorrupt, "safetensors header does not start with '{'");
  HeaderHandler handler;
  parse_json_events(json, handler, {.max_depth = 3});
  SafetensorsHeader header = handler.take();
  header.data_offset = 8 + json.size();
  check_tiling(header, data_bytes, tolerate);
  return header;
}

SafetensorsHeader read_safetensors_header(const ByteWindow& window, bool tolerate) {
  const std::uint64_t n = length_or_kind(window);
  const Bytes json = window.read(8, n);
  return parse_safetensors_header(json, window.length - 8 - n, tolerate);
}

void layout_safetensors(std::vector<SafetensorsTensor>& tensors) {
  for (const auto& tensor : tensors) {
    in_tensor(tensor.name, [&] {
      check_tensor_name(tensor.name);
      if (!safetensors_name(tensor.spec.dtype))
        fail(Code::kUnsupported,
             fmt::format("safetensors has no name for dtype {}", torch_name(tensor.spec.dtype)),
             "leave the tensor out (--exclude), or write torch-save or torch-dcp");
    });
  }
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(dtype_order(a.spec.dtype), a.name.view()) <
           std::pair(dtype_order(b.spec.dtype), b.name.view());
  });
  std::uint64_t at = 0;
  for (auto& tensor : tensors) {
    tensor.begin = at;
    const auto end = checked_add(at, static_cast<std::uint64_t>(tensor.spec.size_bytes()));
    if (!end)
      in_tensor(tensor.name,
                [] { fail(Code::kUnsupported, "the file would overflow 64-bit offsets"); });
    at = tensor.end = *end;
  }
}

Bytes render_safetensors_header(const std::vector<SafetensorsTensor>& tensors,
                                const std::vector<std::pair<std::string, std::string>>& metadata,
                                std::uint64_t alignment) {
  std::string json = "{";
  const char* comma = "";
  if (!metadata.empty()) {
    json += quoted(std::string(kMetadataName)) + ":{";
    for (const auto& [key, value] : metadata) {
      json += comma + quoted(key) + ':' + quoted(value);
      comma = ",";
    }
    json += '}';
  }
  for (const auto& tensor : tensors) {
    json += comma + quoted(tensor.name);
    json += fmt::format(":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        safetensors_name(tensor.spec.dtype).value(),
                        fmt::join(tensor.spec.shape.extents(), ","), tensor.begin, tensor.end);
    comma = ",";
  }
  json += '}';
  json.append((alignment - (8 + json.size()) % alignment) % alignment, ' ');
  if (json.size() > kMaxSafetensorsHeaderBytes)
    fail(Code::kUnsupported,
         fmt::format("the safetensors header would take {} bytes; readers allow {}", json.size(),
                     kMaxSafetensorsHeaderBytes),
         "split the checkpoint (--max-shard-size), or write torch-dcp");
  Bytes out(8 + json.size());
  store_le<std::uint64_t>(out.data(), json.size());
  std::copy_n(as_bytes(json).data(), json.size(), out.data() + 8);
  return out;
}

}  // namespace tessera
