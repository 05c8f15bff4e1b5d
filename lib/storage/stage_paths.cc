#include "lib/storage/stage_paths.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/storage/stage.h>

#include <algorithm>

#include "lib/storage/path_rules.h"

namespace tessera::storage {

namespace {

constexpr std::size_t kHashDigits = 16;
constexpr std::size_t kMostNameBytes = 255;  // of the file systems of Linux
constexpr std::string_view kLockSuffix = ".lock";
constexpr std::string_view kJournalSuffix = ".jrnl";
static_assert(kJournalSuffix.size() <= kLockSuffix.size());  // the longest name is a lock's

bool is_hex(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::string StagePaths::final_path() const { return join_path(parent, name); }
std::string StagePaths::stage() const { return stage_of(hash); }
std::string StagePaths::seal_beside() const {
  return join_path(parent, fmt::format("{}{}", name, kSealSuffix));
}
std::string StagePaths::stage_of(std::string_view other_hash) const {
  return join_path(parent, fmt::format(".{}.tmp-{}", name, other_hash));
}
std::string StagePaths::trash_of(std::string_view other_hash) const {
  return join_path(parent, fmt::format(".{}.trash-{}", name, other_hash));
}
std::string StagePaths::lock_of(std::string_view other_hash) const {
  return fmt::format("{}{}", stage_of(other_hash), kLockSuffix);
}
std::string StagePaths::journal_of(std::string_view other_hash) const {
  return fmt::format("{}{}", stage_of(other_hash), kJournalSuffix);
}

StagePaths make_stage_paths(const FileSystem& fs, const std::string& final_path,
                            const std::string& plan_hash) {
  if (!is_hex(plan_hash))
    fail(Code::kInvalidArgument, fmt::format("plan hash \"{}\" is not lower-case hex", plan_hash));
  const SplitPath split = split_path(final_path);
  if (split.name.empty() || split.name == "." || split.name == ".." || split.name == "/")
    fail(Code::kInvalidArgument,
         fmt::format("output path \"{}\" names no file or folder", final_path));
  const std::size_t longest =
      kMostNameBytes - std::string_view("..tmp-").size() - kHashDigits - kLockSuffix.size();
  if (split.name.size() > longest)
    fail(
        Code::kInvalidArgument,
        fmt::format("the output's name {}... is {} bytes long; {} are the most, for what is staged "
                    "is named after it",
                    split.name.substr(0, 20), split.name.size(), longest),
        "choose a shorter name");
  const std::optional<FileInfo> parent = fs.stat(split.parent);
  if (!parent || parent->type != FileType::kDirectory)
    fail(Code::kNotFound, fmt::format("the folder {} of the output does not exist", split.parent),
         "create it first");
  return {fs.canonical(split.parent), split.name, plan_hash, plan_hash.substr(0, kHashDigits)};
}

std::optional<OwnName> parse_own_name(const StagePaths& paths, const FileInfo& entry) {
  std::string_view rest = entry.name;
  if (!take_prefix(rest, ".") || !take_prefix(rest, paths.name)) return std::nullopt;
  OwnName own{OwnNameKind::kStage, ""};
  FileType expected = FileType::kDirectory;
  if (take_prefix(rest, ".trash-")) {
    own.kind = OwnNameKind::kTrash;
  } else if (!take_prefix(rest, ".tmp-")) {
    return std::nullopt;
  } else if (rest.ends_with(kLockSuffix)) {
    rest.remove_suffix(kLockSuffix.size());
    own.kind = OwnNameKind::kLock;
    expected = FileType::kRegular;
  } else if (rest.ends_with(kJournalSuffix)) {
    rest.remove_suffix(kJournalSuffix.size());
    own.kind = OwnNameKind::kJournal;
    expected = FileType::kRegular;
  }
  if (!is_hex(rest) || rest.size() > kHashDigits || entry.type != expected) return std::nullopt;
  own.hash = rest;
  return own;
}

}  // namespace tessera::storage
