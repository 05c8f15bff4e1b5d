#include "lib/format/torch_files/equal_copies.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <map>
#include <string>

#include "lib/state/same_bytes.h"

namespace tessera {
namespace {

constexpr std::uint64_t kComparedBytes = std::uint64_t{1} << 20;

/// Block by block.
void require_equal(const Directory& directory, const Manifest& manifest, const Source& a,
                   const Source& b) {
  const auto left = directory.open(manifest.files[a.file].path);
  const auto right = directory.open(manifest.files[b.file].path);
  Bytes x(std::min(kComparedBytes, a.length));
  Bytes y(x.size());
  for (std::uint64_t at = 0; at < a.length; at += kComparedBytes) {
    const auto length = std::min(kComparedBytes, a.length - at);
    left->read_at(a.offset + at, MutableBytes(x).first(length));
    right->read_at(b.offset + at, MutableBytes(y).first(length));
    if (x == y) continue;
    fail(Code::kUnsupported,
         fmt::format("ranks hold different values of it ({} and {}), and nothing says which one "
                     "counts",
                     manifest.files[a.file].path, manifest.files[b.file].path),
         "leave it out (--exclude), or take what is whole (--salvage)");
  }
}

void compare_copies(const Directory& directory, const Manifest& manifest,
                    const StoredTensor& tensor) {
  std::map<std::string, Source> firsts;  // by place in the tensor
  for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
    const Source& source = manifest.source(tensor, c);
    if (source.kind != Source::Kind::kExtent || source.side != 0) continue;
    const auto [first, is_first] = firsts.emplace(manifest.chunk(tensor, c).to_string(), source);
    const Source& known = first->second;
    if (is_first || known.length != source.length || known.view != source.view ||
        known.flags != source.flags || known_equal(manifest, known, source).value_or(false))
      continue;
    in_tensor(tensor.name, [&] { require_equal(directory, manifest, known, source); });
  }
}

}  // namespace

void require_equal_copies(const Directory& directory, const Manifest& manifest,
                          std::span<const std::uint32_t> tensors) {
  for (const std::uint32_t t : tensors) compare_copies(directory, manifest, manifest.tensors[t]);
}

}  // namespace tessera
