#pragma once
// Damage of what was not asked for. A reader that tolerates damage has noted what it found; what
// was asked for is untouched by it when
//
//   no note names an entry of it         stored ones, and lost ones that the selection would take
//   each of its tensors is whole         by the sizes of files and by coverage
//   no file that was lost may hold it    what it holds only its neighbours show: files with
//                                        names like its (`rank_*.pt`) hold none of it
//
// Pure.
#include <tessera/ops/open.h>
#include <tessera/state/manifest.h>
#include <tessera/state/roles.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Whether a file's name says that an optimizer's state is in it.
bool is_called_optimizer(std::string_view path);

class DamageElsewhere {
 public:
  /// `whole`: as it was read, with the reader's notes, before anything was chosen.
  explicit DamageElsewhere(const Manifest& whole);

  /// Was none noted?
  bool empty() const { return notes_.empty(); }
  /// May `part`, which the selection of `options` (and what it needs) left of it, be damaged?
  bool touches(const Manifest& part, const OpenOptions& options) const;
  /// Drops the reader's notes of damage that is none of `part`. True where there were any.
  bool leave_to_the_rest(Manifest& part, const OpenOptions& options) const;
  /// One line for the user; not of none.
  Note note() const;

 private:
  /// What was chosen.
  struct Chosen {
    Chosen(const Manifest& part, const OpenOptions& options);
    const OpenOptions& options;
    std::vector<std::string> entries;  // as stored, sorted
    std::set<std::uint32_t> files;     // that its tensors lie in
  };

  bool concerns(const Note& note, const Chosen& chosen) const;
  bool takes_lost(const std::string& name, const OpenOptions& options) const;
  bool may_hold(const std::string& file, const Chosen& chosen) const;
  std::optional<Part> part_of(const std::string& name) const;

  std::vector<Note> notes_;
  std::vector<std::string> stored_;  // names of entries, sorted
  std::vector<OptimizerRoot> optimizers_;
  std::vector<StoredFile> files_;
  std::vector<std::string> listed_files_;  // of which an index lists what they hold, sorted
  std::vector<bool> has_tensors_;          // by file
};

/// Drops all entries but the one called `name`, those below it and the value that it lies in.
/// False, and nothing is dropped, where there are none.
bool keep_only(Manifest& manifest, const std::string& name);

}  // namespace tessera
