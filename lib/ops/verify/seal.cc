#include "lib/ops/verify/seal.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "lib/ops/open/path_resolve.h"
#include "lib/ops/open/seal_damage.h"
#include "lib/ops/open/sealed_directory.h"
#include "lib/ops/seal/check.h"
#include "lib/storage/linked_directory.h"

namespace tessera {
namespace {

/// The byte of the file of which one bit turned, where that explains all that differs (other
/// damage seldom looks so too).
std::optional<std::uint64_t> only_turned_byte(const SealedBlocks& blocks,
                                              const SealedFile& sealed) {
  if (blocks.wrong.size() != 1) return std::nullopt;
  const std::size_t block = blocks.wrong.front();
  if (block >= sealed.crc32_per_mib.size()) return std::nullopt;
  const std::uint64_t begin = block * kMiB;
  const auto byte = turned_byte(sealed.crc32_per_mib[block], blocks.found.front(),
                                std::min(kMiB, sealed.size_bytes - begin));
  return byte ? std::optional(begin + *byte) : std::nullopt;
}

/// " (as do those of a, b and 3 more)": the files of all but the first; "" where that is all.
std::string others(const std::vector<Note>& damage) {
  constexpr std::size_t kMostNames = 4;
  if (damage.size() < 2) return "";
  std::string names;
  for (std::size_t i = 1; i < std::min(damage.size(), 1 + kMostNames); ++i)
    names += (names.empty() ? "" : ", ") + printable(damage[i].file);
  if (damage.size() > 1 + kMostNames)
    names += fmt::format(" and {} more", damage.size() - 1 - kMostNames);
  return fmt::format(" (as do those of {})", names);
}

/// Moves the names of `first` to the front of `all`. Returns the first of them.
std::string put_first(const std::vector<std::string>& first, std::vector<std::string>& all) {
  std::ranges::stable_partition(
      all, [&](const std::string& name) { return std::ranges::find(first, name) != first.end(); });
  return first.empty() ? "" : first.front();
}

}  // namespace

std::optional<Note> check_sealed_file(const Directory& directory, const std::string& name,
                                      const SealedFile& sealed, const Manifest* manifest,
                                      const ReadTick& tick, const IsWhole& is_whole) {
  const auto file = directory.open(name);
  const SealedBlocks blocks = check_sealed_blocks(*file, sealed, tick);
  if (blocks.wrong.empty()) return std::nullopt;
  std::vector<std::string> there;
  if (manifest != nullptr) there = tensors_in(blocks, *manifest, name);
  const auto turned = only_turned_byte(blocks, sealed);
  std::string which;  // of those that lie there changed
  if (is_whole && there.size() > 1) {
    std::erase_if(there, is_whole);
    if (there.empty()) which = "; all tensors that lie there are whole by their own checksums";
  } else if (!turned && there.size() > 1 && !has_sums_of_its_own(*file)) {
    which =
        "; nothing shows which of them changed: only the seal of a result written with --verify "
        "has a checksum of each tensor";
  }
  const std::string likely =
      turned && manifest != nullptr ? put_first(tensors_at(*turned, *manifest, name), there) : "";
  std::string message = describe_blocks(blocks, "what was written", there);
  message += which;
  if (turned) message += fmt::format("; as if one bit of byte {} had flipped", *turned);
  return Note{Finding::kSealDifference, Severity::kError, std::move(message), name,
              there.size() == 1 ? there[0] : likely};
}

std::vector<Note> check_seal_of(FileSystem& fs, const std::string& asked, VerifyLevel level,
                                const ReadTick& tick) {
  const auto info = fs.stat(asked);
  if (!info || (info->type != FileType::kDirectory && info->type != FileType::kRegular)) return {};
  std::string folder = asked, file;
  if (info->type == FileType::kRegular) std::tie(folder, file) = split_path(fs.canonical(asked));
  const auto directory = storage::open_linked_directory(fs, folder);
  std::string why;
  const auto seal = read_seal(*directory, file, &why);
  if (!seal && why.empty()) return {};
  if (!seal) return {{Finding::kBadSeal, Severity::kError, why, seal_name(file), ""}};
  std::vector<Note> found;
  if (level == VerifyLevel::kQuick) return found;
  for (const SealedFile& sealed : seal->files) {
    if (auto note = check_sealed_file(*directory, sealed.path, sealed, nullptr, tick))
      found.push_back(std::move(*note));
  }
  return found;
}

void blame_damage(const std::vector<Note>& damage, const Error& error) {
  if (damage.empty()) return;
  const Note& first = damage.front();
  Status status = error.status();
  status.code = Code::kCorrupt;
  status.message = fmt::format("{}{}; so it cannot be opened: {}", first.message, others(damage),
                               error.status().message);
  status.hint = "take the file from another copy";
  status.context.file = first.file;
  status.context.tensor = first.tensor;
  throw Error(std::move(status));
}

}  // namespace tessera
