#include "lib/ops/verify/causes.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace tessera {
namespace {

// Findings about one file are one loss; the first of these that was found names it.
constexpr std::array<Finding, 4> kLosses = {Finding::kMissingFile, Finding::kUnreadableFile,
                                            Finding::kShortFile, Finding::kLost};

std::size_t loss_rank(const Note& note) {
  if (note.file.empty() || note.severity != Severity::kError) return kLosses.size();
  return static_cast<std::size_t>(std::ranges::find(kLosses, note.code) - kLosses.begin());
}

class Grouping {
 public:
  explicit Grouping(const Manifest& manifest) : manifest_(manifest) {}

  std::vector<DamageCause> run(const std::vector<Note>& findings) {
    for (const Note& note : findings) add(note);
    std::vector<DamageCause> causes;
    for (Group& group : groups_) causes.push_back(finish(group));
    return causes;
  }

 private:
  struct Group {
    DamageCause cause;
    std::set<std::string> seen;
    std::size_t loss = kLosses.size();  // rank of the finding that names it
    bool is_loss = false;
  };

  void add(const Note& note) {
    const std::size_t loss = loss_rank(note);
    const bool is_loss = loss < kLosses.size();
    const std::string key =
        is_loss ? '\1' + note.file
                : fmt::format("{}\n{}\n{}\n{}", code_text(note.code), severity_name(note.severity),
                              note.file, note.message);
    const auto [at, fresh] = numbers_.try_emplace(key, groups_.size());
    if (fresh) groups_.emplace_back();
    Group& group = groups_[at->second];
    group.is_loss = is_loss;
    ++group.cause.findings;
    if (!note.tensor.empty() && group.seen.insert(note.tensor).second)
      group.cause.tensors.push_back(note.tensor);
    if (!fresh && loss >= group.loss) return;
    group.loss = loss;
    group.cause.code = note.code;
    group.cause.severity = note.severity;
    group.cause.message = note.message;
    group.cause.file = note.file;
  }

  /// Where there are several findings, what they say of single tensors gives way to what they have
  /// in common.
  DamageCause finish(Group& group) {
    DamageCause& cause = group.cause;
    if (!group.is_loss || cause.findings < 2) return std::move(cause);
    const std::uint64_t size = size_of(cause.file), end = end_of(cause.file);
    if (cause.code == Finding::kMissingFile || cause.code == Finding::kUnreadableFile)
      return std::move(cause);
    if (end > size)
      cause.message = fmt::format("{} is {} short", cause.file, format_bytes(end - size));
    return std::move(cause);
  }

  std::uint64_t size_of(const std::string& path) const {
    const auto file = std::ranges::find(manifest_.files, path, &StoredFile::path);
    return file == manifest_.files.end() ? 0 : file->size_bytes;
  }

  /// Where the last thing in the file ends, by metadata.
  std::uint64_t end_of(const std::string& path) {
    if (ends_.empty()) {
      ends_.resize(manifest_.files.size());
      for (std::size_t i = 0; i < manifest_.chunks.size(); ++i) {
        const Source& source = manifest_.chunks.source(i);
        if (source.kind == Source::Kind::kInline || source.kind == Source::Kind::kFill) continue;
        if (const auto end = checked_add(source.offset, source.length))
          ends_[source.file] = std::max(ends_[source.file], *end);
      }
    }
    const auto file = std::ranges::find(manifest_.files, path, &StoredFile::path);
    return file == manifest_.files.end()
               ? 0
               : ends_[static_cast<std::size_t>(file - manifest_.files.begin())];
  }

  const Manifest& manifest_;
  std::vector<Group> groups_;
  std::map<std::string, std::size_t> numbers_;
  std::vector<std::uint64_t> ends_;
};

}  // namespace

std::vector<DamageCause> find_causes(const std::vector<Note>& findings, const Manifest& manifest) {
  return Grouping(manifest).run(findings);
}

}  // namespace tessera
