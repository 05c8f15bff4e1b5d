#include "lib/format/torch_files/archive_names.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>
#include <vector>

namespace tessera {
namespace {

constexpr std::size_t kNamesInNote = 3;

/// "rank_#_of_#" for "rank_10_of_16".
std::string without_numbers(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool digit = is_digit(c);
    if (!digit)
      out += c;
    else if (out.empty() || out.back() != '\0')
      out += '\0';
  }
  return out;
}

bool are_alike(std::string_view a, std::string_view b) {
  return a != b && without_numbers(a) == without_numbers(b);
}

std::string_view stem_of(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.substr(0, name.rfind('.'));
}

/// "a/rank_0" for "a/rank_0.pt".
std::string without_suffix(const std::string& path) {
  return path.substr(
      0, path.size() - (path.substr(path.rfind('/') + 1).size() - stem_of(path).size()));
}

/// Files, and which other one each was saved as.
class RenamedFiles {
 public:
  RenamedFiles(const ArchiveManifestBuilder& builder, const Manifest& manifest)
      : builder_(builder), manifest_(manifest) {
    std::map<std::string, std::uint32_t> by_name;
    for (std::uint32_t f = 0; f < manifest.files.size(); ++f)
      by_name.emplace(without_suffix(path(f)), f);
    for (std::uint32_t f = 0; f < manifest.files.size(); ++f) {
      const std::string stem(stem_of(path(f))), own = without_suffix(path(f));
      if (!are_alike(stem, prefix(f))) continue;
      renamed_.push_back(f);
      const auto other = by_name.find(own.substr(0, own.size() - stem.size()) + prefix(f));
      if (other != by_name.end()) saved_as_.emplace(f, other->second);
    }
  }

  const std::vector<std::uint32_t>& renamed() const { return renamed_; }
  const std::string& path(std::uint32_t file) const { return manifest_.files[file].path; }
  const std::string& prefix(std::uint32_t file) const { return builder_.archive(file).prefix; }
  bool is_copy(std::uint32_t file) const {
    const auto other = saved_as_.find(file);
    return other != saved_as_.end() &&
           is_same_archive(builder_.archive(file), builder_.archive(other->second));
  }
  bool is_swapped(std::uint32_t file) const {
    std::uint32_t at = file;
    for (std::size_t steps = 0; steps < saved_as_.size(); ++steps) {
      const auto next = saved_as_.find(at);
      if (next == saved_as_.end()) return false;
      if ((at = next->second) == file) return true;
    }
    return false;
  }

 private:
  const ArchiveManifestBuilder& builder_;
  const Manifest& manifest_;
  std::vector<std::uint32_t> renamed_;
  std::map<std::uint32_t, std::uint32_t> saved_as_;  // of those, that are here
};

}  // namespace

bool differ_in_numbers(std::string_view a, std::string_view b) { return are_alike(a, b); }

bool is_same_archive(const TorchArchive& a, const TorchArchive& b) {
  const auto is_same = [](const ArchiveStorage& x, const ArchiveStorage& y) {
    return x.has_crc && y.has_crc && x.crc32 == y.crc32 && x.size_bytes == y.size_bytes;
  };
  return !a.storages.empty() && std::ranges::equal(a.storages, b.storages, is_same) &&
         a.root == b.root;
}

void report_renamed(ArchiveManifestBuilder& builder, Findings& findings) {
  const bool known = std::ranges::any_of(builder.manifest().notes, [](const Note& note) {
    return note.code == Finding::kOtherRanksFile && note.severity == Severity::kError;
  });
  if (known) return;  // by what is in the files
  const RenamedFiles files(builder, builder.manifest());
  std::string shown, first;
  std::size_t count = 0;
  for (const std::uint32_t file : files.renamed()) {
    const std::string was = fmt::format("{} was saved as {}", printable(files.path(file)),
                                        printable(files.prefix(file)));
    if (files.is_copy(file))
      return findings.error(Finding::kOtherRanksFile,
                            was +
                                ", and both are the same bytes: it was copied over the file that "
                                "should be here",
                            files.path(file));
    if (files.is_swapped(file))
      return findings.error(Finding::kOtherRanksFile,
                            was + ", and that one in its place: they lie under each other's names",
                            files.path(file));
    if (count++ == 0) first = files.path(file);
    if (count <= kNamesInNote) shown += (count > 1 ? ", " : "") + was;
  }
  if (count == 0) return;
  findings.note(
      Finding::kOtherRanksFile, Severity::kWarning,
      fmt::format("{}{}: renamed, or copied from another rank's file; the names are taken "
                  "as they are",
                  shown, count > kNamesInNote ? ", ..." : ""),
      first);
}

}  // namespace tessera
