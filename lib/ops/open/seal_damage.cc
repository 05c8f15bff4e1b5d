#include "lib/ops/open/seal_damage.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/hashed_tensor.h>
#include <tessera/ops/seal.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lib/base/damage.h"
#include "lib/base/sort_unique.h"
#include "lib/ops/open/sealed_directory.h"
#include "lib/ops/seal/check.h"

namespace tessera {
namespace {

constexpr std::uint32_t kReflectedPolynomial = 0xEDB88320;

struct Span {
  std::uint64_t begin = 0, end = 0;  // bytes of the file
  std::uint64_t chunk = 0;           // in Manifest::chunks
  std::uint32_t tensor = 0;
};

/// A MiB that differs.
struct Block {
  std::uint64_t begin = 0, end = 0;
  std::optional<std::uint64_t> turned;  // where one bit was
};

class SealDamage {
 public:
  SealDamage(OpenedCheckpoint& checkpoint, const Seal& seal, const ReadOptions& read,
             const TransferOptions& transfer)
      : checkpoint_(checkpoint),
        manifest_(checkpoint.manifest),
        seal_(seal),
        read_(read),
        transfer_(transfer) {
    for (const HashedTensor& tensor : seal.tensors) sealed_.emplace(tensor.name, &tensor);
  }

  std::map<std::uint64_t, std::string> run() {
    for (std::uint32_t f = 0; f < manifest_.files.size(); ++f) check_file(f);
    return std::move(changed_);
  }

 private:
  void check_file(std::uint32_t number) {
    const std::string& path = manifest_.files[number].path;
    const SealedFile* sealed = seal_.find(path);
    if (sealed == nullptr) return;
    const auto file = checkpoint_.directory->open(path);
    if (has_sums_of_its_own(*file)) return check_archive(number, *file, *sealed);
    const SealedBlocks blocks =
        check_sealed_blocks(*file, *sealed, [this](std::size_t) { check_cancelled(); });
    if (blocks.wrong.empty()) return;
    const std::vector<Span> spans = spans_of(number);
    for (std::size_t i = 0; i < blocks.wrong.size(); ++i)
      check_block(block_at(*sealed, blocks, i), spans, path);
  }

  /// Its records are held to sums that it has itself, so that it must be the file that was written.
  void check_archive(std::uint32_t number, const ReadFile& file, const SealedFile& sealed) {
    const auto tick = [this](std::size_t) { check_cancelled(); };
    const SealedBlocks blocks = check_sealed_blocks(file, sealed, tick);
    if (blocks.wrong.empty() || has_found_damage(number) || !locate_all_of(number)) return;
    std::vector<Span> damaged;
    for (const Record& record : manifest_.records)
      if (record.file == number && record_crc(file, record, tick) != record.crc32)
        damaged.push_back({record.offset, record.offset + record.length, 0, 0});
    for (std::size_t i = 0; i < blocks.wrong.size(); ++i) {
      const Block block = block_at(sealed, blocks, i);
      const bool explained = block.turned || std::ranges::any_of(damaged, [&](const Span& record) {
                               return hit(block, record);
                             });
      if (!explained) refuse_archive(manifest_.files[number].path);
    }
  }
  /// What the reader found in values, as items of a DCP file.
  bool has_found_damage(std::uint32_t file) const {
    return std::ranges::any_of(manifest_.notes, [&](const Note& note) {
      return note.severity == Severity::kError && note.file == manifest_.files[file].path;
    });
  }
  /// False where that shows damage.
  bool locate_all_of(std::uint32_t file) {
    std::vector<std::uint32_t> tensors;
    for (const Span& span : spans_of(file)) tensors.push_back(span.tensor);
    sort_unique(tensors);
    try {
      checkpoint_.locate(tensors, read_);
      return true;
    } catch (const Error& error) {
      if (!is_damage(error.code())) throw;
      return false;
    }
  }
  static void refuse_archive(const std::string& path) {
    in_file(path, [] {
      fail(Code::kCorrupt,
           "its own checksums are right, but it is not the file that was written here: perhaps it "
           "belongs to another save",
           "replace the file with another copy, or move it away: then what it held is lost");
    });
  }
  void check_cancelled() const {
    if (transfer_.cancel != nullptr) transfer_.cancel->check();
  }

  void check_block(Block block, const std::vector<Span>& spans, const std::string& path) {
    std::vector<Span> hits = unproved(block, spans);
    if (hits.empty() && block.turned && covered(block, spans)) {
      block.turned.reset();  // the tensor there is whole: it was no single bit
      hits = unproved(block, spans);
    }
    // Metadata beside tensors counts as whole where the sum of one of those shows what changed.
    const bool identified = !hits.empty() && !sealed_.empty() && names_are_sealed();
    if (!covered(block, spans) && !identified) refuse(path);
    for (const Span& span : hits) changed_.try_emplace(span.chunk, reason_of(block, path));
  }

  std::vector<Span> unproved(const Block& block, const std::vector<Span>& spans) {
    std::vector<Span> hits;
    for (const Span& span : spans)
      if (hit(block, span) && !is_proved_whole(span.tensor)) hits.push_back(span);
    return hits;
  }

  static Block block_at(const SealedFile& sealed, const SealedBlocks& blocks, std::size_t i) {
    Block block;
    block.begin = blocks.wrong[i] * kMiB;
    block.end = std::min(block.begin + kMiB, sealed.size_bytes);
    const auto byte = turned_byte(sealed.crc32_per_mib[blocks.wrong[i]], blocks.found[i],
                                  block.end - block.begin);
    if (byte) block.turned = block.begin + *byte;
    return block;
  }

  std::vector<Span> spans_of(std::uint32_t file) const {
    std::vector<Span> spans;
    for (std::uint32_t t = 0; t < manifest_.tensors.size(); ++t) {
      const StoredTensor& tensor = manifest_.tensors[t];
      for (std::uint64_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c) {
        const Source& source = manifest_.chunks.source(c);
        const bool in_file = source.kind == Source::Kind::kExtent ||
                             source.kind == Source::Kind::kPending ||
                             source.kind == Source::Kind::kCoded;
        if (in_file && source.file == file && source.length > 0)
          spans.push_back({source.offset, source.offset + source.length, c, t});
      }
    }
    std::ranges::sort(spans, {}, &Span::begin);
    return spans;
  }

  static bool hit(const Block& block, const Span& span) {
    if (block.turned) return span.begin <= *block.turned && *block.turned < span.end;
    return span.begin < block.end && block.begin < span.end;
  }
  /// Do tensors hold all of what may have changed?
  static bool covered(const Block& block, const std::vector<Span>& spans) {
    std::uint64_t at = block.turned.value_or(block.begin);
    const std::uint64_t end = block.turned ? at + 1 : block.end;
    for (const Span& span : spans)
      if (span.begin <= at && at < span.end) at = span.end;
    return at >= end;
  }
  static std::string reason_of(const Block& block, const std::string& path) {
    if (block.turned)
      return fmt::format("a bit of byte {} is not as it was written [{}]", *block.turned, path);
    return fmt::format(
        "bytes {} to {} are not as they were written, and nothing shows which of the tensors in "
        "them changed [{}]",
        block.begin, block.end, path);
  }

  /// Has it the sum that it was sealed with?
  bool is_proved_whole(std::uint32_t tensor) {
    const auto [known, fresh] = whole_.try_emplace(tensor, false);
    const HashedTensor* sealed = fresh ? sealed_as(manifest_.tensors[tensor]) : nullptr;
    if (sealed != nullptr) known->second = has_sum(tensor, *sealed);
    return known->second;
  }
  const HashedTensor* sealed_as(const StoredTensor& tensor) const {
    const auto found = sealed_.find(tensor.name);
    if (tensor.embedded || found == sealed_.end()) return nullptr;
    const auto extents = tensor.spec.shape.extents();
    const bool same = found->second->dtype == torch_name(tensor.spec.dtype) &&
                      std::ranges::equal(found->second->shape, extents);
    return same ? found->second : nullptr;
  }
  bool has_sum(std::uint32_t tensor, const HashedTensor& sealed) {
    try {
      const std::uint32_t list[] = {tensor};
      checkpoint_.locate(list, read_);
      TransferOptions quiet = transfer_;
      quiet.progress = nullptr;
      return hash_tensors(manifest_, *checkpoint_.directory, {tensor}, quiet)[0] == sealed.sha256;
    } catch (const Error& error) {
      if (!is_damage(error.code())) throw;
      return false;
    }
  }
  bool names_are_sealed() const {
    return std::ranges::all_of(manifest_.tensors, [this](const StoredTensor& tensor) {
      return tensor.embedded || sealed_as(tensor) != nullptr;
    });
  }

  [[noreturn]] static void refuse(const std::string& path) {
    in_file(path, [] {
      fail(Code::kCorrupt,
           "its bytes are not those that were written, and what changed may be the metadata, which "
           "says what lies where",
           "take the file from another copy; a result written with --verify has a checksum of each "
           "tensor, which would show it");
    });
    TESSERA_CHECK(false);
  }

  OpenedCheckpoint& checkpoint_;
  const Manifest& manifest_;
  const Seal& seal_;
  const ReadOptions& read_;
  const TransferOptions& transfer_;
  std::map<std::string, const HashedTensor*> sealed_;
  std::map<std::uint32_t, bool> whole_;  // tensors that were asked for
  std::map<std::uint64_t, std::string> changed_;
};

}  // namespace

std::optional<std::uint64_t> turned_byte(std::uint32_t wanted, std::uint32_t found,
                                         std::uint64_t block_bytes) {
  // The sum is linear: a turned bit adds its own sum, a power of x, whatever the other bits are.
  const std::uint32_t difference = wanted ^ found;
  std::uint32_t power = kReflectedPolynomial;  // of the last bit
  for (std::uint64_t bit = 8 * block_bytes; bit-- > 0;) {
    if (power == difference) return bit / 8;
    power = (power >> 1) ^ ((power & 1) != 0 ? kReflectedPolynomial : 0);
  }
  return std::nullopt;
}

std::map<std::uint64_t, std::string> changed_chunks(OpenedCheckpoint& checkpoint,
                                                    const ReadOptions& read,
                                                    const TransferOptions& transfer) {
  const std::shared_ptr<const Seal> seal = checkpoint.seal;
  for (const Note& note : checkpoint.notes) {
    if (note.code != Finding::kSealDifference) continue;
    const bool holds_tensors =
        seal && std::ranges::any_of(checkpoint.manifest.files, [&note](const StoredFile& file) {
          return file.path == note.file;
        });
    if (!holds_tensors) in_file(note.file, [&note] { fail(Code::kCorrupt, note.message); });
  }
  if (!seal) return {};
  return SealDamage(checkpoint, *seal, read, transfer).run();
}

}  // namespace tessera
