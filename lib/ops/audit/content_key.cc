#include "lib/ops/audit/content_key.h"

#include <tessera/storage/checksum.h>

#include <bit>

namespace tessera {
namespace {

constexpr std::uint64_t kBlock = std::uint64_t{1} << 20;  // of a seal's sums

/// Sums of bytes that a chunk lies in, joined chunk by chunk.
struct JoinedSums {
  std::uint64_t exact = 1, around = 1, interior = 1;
  bool has_exact = true, has_around = true, has_interior = false;

  void add_all(std::uint64_t value) {
    exact = mix_key(exact, value);
    around = mix_key(around, value);
    interior = mix_key(interior, value);
  }
};

void add_record(const Source& source, const Record& record, JoinedSums& sums) {
  sums.add_all(record.length);
  sums.add_all(source.offset - record.offset);
  sums.exact = mix_key(sums.exact, record.crc32);
  sums.around = mix_key(sums.around, record.crc32);
  sums.has_exact = sums.has_exact && record.length == source.length;
}

void add_blocks(const Source& source, const SealedFile& file, JoinedSums& sums) {
  sums.has_exact = false;
  const std::uint64_t end = source.offset + source.length;
  if (source.length == 0 || end < source.offset || end > file.size_bytes) {
    sums.has_around = source.length == 0 && sums.has_around;
    return;
  }
  sums.around = mix_key(mix_key(sums.around, file.path), source.offset);
  sums.interior = mix_key(mix_key(sums.interior, file.path), source.offset);
  for (std::uint64_t block = source.offset / kBlock; block <= (end - 1) / kBlock; ++block) {
    const std::uint32_t crc = file.crc32_per_mib[block];
    sums.around = mix_key(sums.around, crc);
    if (block * kBlock < source.offset || (block + 1) * kBlock > end) continue;
    sums.interior = mix_key(sums.interior, crc);
    sums.has_interior = true;
  }
}

}  // namespace

std::uint64_t mix_key(std::uint64_t key, std::uint64_t value) {
  key = (key ^ value) * 0x9e3779b97f4a7c15u;
  return std::rotl(key, 29) ^ (key >> 7);
}

std::uint64_t mix_key(std::uint64_t key, std::string_view text) {
  for (const char c : text) key = mix_key(key, static_cast<unsigned char>(c));
  return mix_key(key, text.size());
}

ContentChange compare_content(const ContentKey& before, const ContentKey& after) {
  if (before.exact != 0 && after.exact != 0 && before.kind == after.kind)
    return before.exact == after.exact ? ContentChange::kSame : ContentChange::kChanged;
  if (before.around != 0 && before.around == after.around) return ContentChange::kSame;
  if (before.interior != 0 && after.interior != 0 && before.interior != after.interior)
    return ContentChange::kChanged;
  return ContentChange::kUnknown;
}

ContentKeys::ContentKeys(const Manifest& manifest, const Seal* seal) : manifest_(manifest) {
  if (seal == nullptr) return;
  for (const HashedTensor& tensor : seal->tensors) hashed_.emplace(tensor.name, &tensor);
  for (const SealedFile& file : seal->files) sealed_.emplace(file.path, &file);
}

ContentKey ContentKeys::of(const StoredTensor& tensor) const {
  const auto hashed = hashed_.find(std::string_view(tensor.name));
  if (hashed != hashed_.end()) return {KeyKind::kSha256, mix_key(2, hashed->second->sha256), 0, 0};
  return by_place(tensor);
}

ContentKey ContentKeys::by_place(const StoredTensor& tensor) const {
  JoinedSums sums;
  sums.add_all(static_cast<std::uint64_t>(tensor.spec.shape.numel()));
  for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
    const Source& source = manifest_.source(tensor, c);
    sums.add_all(source.length);
    sums.add_all(source.flags);
    if (source.kind == Source::Kind::kInline || source.kind == Source::Kind::kFill) {
      sums.add_all(crc32(0, manifest_.inline_bytes[source.side]));
    } else if (source.record != 0) {
      add_record(source, manifest_.records[source.record - 1], sums);
    } else if (const auto file = sealed_.find(manifest_.files[source.file].path);
               file != sealed_.end()) {
      add_blocks(source, *file->second, sums);
    } else {
      return {};
    }
  }
  const KeyKind kind = tensor.chunk_count == 1 ? KeyKind::kRecord : KeyKind::kRecords;
  return {kind, sums.has_exact ? sums.exact : 0, sums.has_around ? sums.around : 0,
          sums.has_interior ? sums.interior : 0};
}

}  // namespace tessera
