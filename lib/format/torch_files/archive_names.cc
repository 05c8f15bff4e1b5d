#include "lib/format/torch_files/archive_names.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>

namespace tessera {
namespace {

constexpr std::size_t kNamesInNote = 3;

/// "rank_#_of_#" for "rank_10_of_16".
std::string without_numbers(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit)
      out += c;
    else if (out.empty() || out.back() != '\0')
      out += '\0';
  }
  return out;
}

std::string_view stem_of(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.substr(0, name.rfind('.'));
}

}  // namespace

bool differ_in_numbers(std::string_view a, std::string_view b) {
  return a != b && without_numbers(a) == without_numbers(b);
}

void note_renamed(ArchiveManifestBuilder& builder) {
  Manifest& manifest = builder.manifest();
  std::string shown, first;
  std::size_t count = 0;
  for (std::uint32_t file = 0; file < manifest.files.size(); ++file) {
    const std::string& path = manifest.files[file].path;
    const std::string& prefix = builder.archive(file).prefix;
    if (!differ_in_numbers(stem_of(path), prefix)) continue;
    if (count++ == 0) first = path;
    if (count <= kNamesInNote)
      shown += fmt::format("{}{} was saved as {}", count > 1 ? ", " : "", printable(path),
                           printable(prefix));
  }
  if (count == 0) return;
  manifest.notes.push_back(
      {Finding::kOtherRanksFile, Severity::kWarning,
       fmt::format("{}{}: renamed, or copied from another rank's file; the names are taken as they "
                   "are",
                   shown, count > kNamesInNote ? ", ..." : ""),
       first, ""});
}

}  // namespace tessera
