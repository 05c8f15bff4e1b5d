#include "lib/state/same_bytes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/state/edit/tensor_remapper.h"

namespace tessera {
namespace {

/// Elements are seen through the same strides, codecs and view. An extent's `side` numbers its
/// strides, which every tensor has for itself.
bool seen_alike(const Manifest& manifest, const Source& a, const Source& b) {
  const bool same_side =
      a.side == b.side || (a.kind == Source::Kind::kExtent && a.side > 0 && b.side > 0 &&
                           manifest.strides[a.side - 1] == manifest.strides[b.side - 1]);
  return a.kind == b.kind && a.flags == b.flags && a.view == b.view && same_side;
}

bool same_source(const Manifest& manifest, const Source& a, const Source& b) {
  return seen_alike(manifest, a, b) && a.file == b.file && a.offset == b.offset &&
         a.length == b.length;
}

bool is_whole(const Source& source, const Record& record) {
  return source.offset == record.offset && source.length == record.length;
}

}  // namespace

std::optional<bool> known_equal(const Manifest& manifest, const Source& a, const Source& b) {
  if (!seen_alike(manifest, a, b)) return std::nullopt;
  if (same_source(manifest, a, b)) return true;
  if (a.kind != Source::Kind::kExtent || a.record == 0 || b.record == 0) return std::nullopt;
  const Record &x = manifest.records[a.record - 1], &y = manifest.records[b.record - 1];
  const bool same_records = x.length == y.length && x.crc32 == y.crc32;
  if (same_records && a.length == b.length && a.offset - x.offset == b.offset - y.offset)
    return true;
  if (!same_records && is_whole(a, x) && is_whole(b, y)) return false;
  return std::nullopt;
}

bool same_stored(const Manifest& manifest, std::uint32_t a, std::uint32_t b) {
  if (a == b) return true;
  const StoredTensor& x = manifest.tensors[a];
  const StoredTensor& y = manifest.tensors[b];
  if (x.spec.shape != y.spec.shape || x.stored_dtype() != y.stored_dtype() ||
      x.chunk_count != y.chunk_count || x.quant != y.quant)
    return false;
  for (std::uint32_t i = 0; i < x.chunk_count; ++i)
    if (!same_source(manifest, manifest.source(x, i), manifest.source(y, i)) ||
        manifest.chunk(x, i) != manifest.chunk(y, i))
      return false;
  return true;
}

bool same_bytes(const Manifest& manifest, std::uint32_t a, std::uint32_t b) {
  return manifest.tensors[a].spec.dtype == manifest.tensors[b].spec.dtype &&
         same_stored(manifest, a, b);
}

Value EqualTensors::operator()(const Value& value) {
  if (!value.holds_tensors()) return value;
  return TensorRemapper([this](std::uint32_t t) {
    return first_.try_emplace(content_of(t), t).first->second;
  })(value);
}

std::string EqualTensors::content_of(std::uint32_t tensor) const {
  const StoredTensor& stored = manifest_.tensors[tensor];
  const std::string alone = fmt::format("#{}", tensor);
  if (stored.chunk_count != 1 ||
      manifest_.chunk(stored, 0) != Chunk::whole_of(Box::whole(stored.spec.shape)))
    return alone;
  const Source& source = manifest_.source(stored, 0);
  if (source.kind == Source::Kind::kPending && manifest_.names_own_bytes) return alone;
  std::string text =
      fmt::format("{} {} {} {} {} {}", stored.spec.to_string(), torch_name(stored.stored_dtype()),
                  stored.quant, static_cast<int>(source.kind), source.flags, source.view);
  if (source.kind == Source::Kind::kExtent && source.side > 0)
    text += fmt::format(" strides {}", fmt::join(manifest_.strides[source.side - 1], ","));
  else
    text += fmt::format(" side {}", source.side);
  if (source.kind != Source::Kind::kExtent || source.record == 0)
    return fmt::format("{} file {} {}+{}", text, source.file, source.offset, source.length);
  const Record& record = manifest_.records[source.record - 1];
  return fmt::format("{} record {} {:08x} {}+{}", text, record.length, record.crc32,
                     source.offset - record.offset, source.length);
}

}  // namespace tessera
