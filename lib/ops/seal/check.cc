#include "lib/ops/seal/check.h"

#include <fmt/format.h>
#include <tessera/storage/checksum.h>

#include <algorithm>

#include "lib/ops/seal/integrity.h"
#include "lib/storage/read_crc.h"

namespace tessera {

SealedBlocks check_sealed_blocks(const ReadFile& file, const SealedFile& sealed,
                                 const std::function<void(std::size_t)>& tick) {
  SealedBlocks blocks;
  Bytes buffer(static_cast<std::size_t>(std::min(kMiB, sealed.size_bytes)));
  for (std::uint64_t at = 0; at < sealed.size_bytes; at += kMiB, ++blocks.count) {
    const MutableBytes part = MutableBytes(buffer).first(
        static_cast<std::size_t>(std::min(kMiB, sealed.size_bytes - at)));
    file.read_at(at, part);
    tick(part.size());
    const std::uint32_t found = crc32(0, part);
    const bool right =
        blocks.count < sealed.crc32_per_mib.size() && found == sealed.crc32_per_mib[blocks.count];
    if (right) continue;
    blocks.wrong.push_back(blocks.count);
    blocks.found.push_back(found);
  }
  return blocks;
}

std::uint32_t record_crc(const ReadFile& file, const Record& record,
                         const std::function<void(std::size_t)>& tick) {
  return read_crc32(0, file, record.offset, record.length, kCheckedBytes, tick);
}

namespace {

/// Tensors of which `holds(begin, length)` is true for bytes in file `path`.
template <class Holds>
std::vector<std::string> tensors_where(const Manifest& manifest, std::string_view path,
                                       const Holds& holds) {
  const auto file = std::ranges::find(manifest.files, path, &StoredFile::path);
  std::vector<std::string> names;
  if (file == manifest.files.end()) return names;
  const auto number = static_cast<std::uint32_t>(file - manifest.files.begin());
  for (const StoredTensor& tensor : manifest.tensors) {
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
      const Source& source = manifest.source(tensor, c);
      const bool in_file =
          source.kind != Source::Kind::kInline && source.kind != Source::Kind::kFill;
      if (!in_file || source.file != number || source.length == 0) continue;
      if (!holds(source.offset, source.length)) continue;
      names.push_back(tensor.name);
      break;
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> tensors_in(const SealedBlocks& blocks, const Manifest& manifest,
                                    std::string_view path) {
  return tensors_where(manifest, path, [&](std::uint64_t begin, std::uint64_t length) {
    const auto block = std::ranges::lower_bound(blocks.wrong, begin / kMiB);
    return block != blocks.wrong.end() && *block <= (begin + length - 1) / kMiB;
  });
}

std::vector<std::string> tensors_at(std::uint64_t byte, const Manifest& manifest,
                                    std::string_view path) {
  return tensors_where(manifest, path, [byte](std::uint64_t begin, std::uint64_t length) {
    return begin <= byte && byte - begin < length;
  });
}

std::string describe_blocks(const SealedBlocks& blocks, std::string_view what,
                            const std::vector<std::string>& tensors) {
  constexpr std::size_t kMostNames = 4;
  std::string text = fmt::format("{} of {} MiB blocks differ from {}, first block {}",
                                 blocks.wrong.size(), blocks.count, what, blocks.wrong.front());
  for (std::size_t i = 0; i < std::min(tensors.size(), kMostNames); ++i)
    text += fmt::format("{}\"{}\"", i == 0 ? "; " : ", ", tensors[i]);
  if (tensors.size() > kMostNames) text += fmt::format(" and {} more", tensors.size() - kMostNames);
  if (!tensors.empty()) text += tensors.size() == 1 ? " lies there" : " lie there";
  return text;
}

}  // namespace tessera
