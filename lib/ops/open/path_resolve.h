#pragma once
// From what the user typed to a folder or file that one format recognises (the PATH rules of
// ops/open.h).
#include <tessera/format/registry.h>
#include <tessera/ops/open.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// A place that a format recognised.
struct FoundCheckpoint {
  std::string path;  // folder or file
  std::string name;  // relative to where the search began; "" when it is the start itself
  std::string file;  // "" or the file's name in its folder
  std::vector<std::string> parts;  // folders below `path` that are one state together
  const FormatDriver* driver = nullptr;
  std::string reason;
  /// Where files and folders of the same training state may lie; "" where PATH is the file itself.
  std::string beside_folder;
  bool is_named = false;  // by PATH or by a pointer, and not only found in a folder
  /// One part of tensors that are cut over several files: which ones; "" for all else.
  std::string part_of;
  /// PATH is one file of a set, as a shard or a rank's: what of it is not read; "" for all else.
  std::string others;

  /// The folder that it lies in, or is.
  std::string folder() const;
  /// "torch-dcp: has .metadata and 4 .distcp files".
  std::string description() const;
};

/// A pointer file or link in a folder.
struct Pointer {
  std::string name;    // "latest"
  std::string target;  // what it names, as written; of a link, from the folder, or from the root
  std::string path;    // folder it leads to; "" when that is absent or no name of a neighbour

  /// `target` for a message: it should be one short word.
  std::string shown() const;
};
bool is_pointer_name(std::string_view name);
/// Whether a pointer file that holds this name names it: space around it does not count.
bool is_pointer_text(std::string_view name);

class PathResolver {
 public:
  /// `pickle_limit_bytes`: as ReadOptions has it, for probes.
  explicit PathResolver(FileSystem& fs, std::string from, std::uint64_t pickle_limit_bytes = 0)
      : fs_(fs), from_(std::move(from)), pickle_limit_bytes_(pickle_limit_bytes) {}

  /// The one checkpoint that `asked` means; notes say which choice was made. `steps`, where given: what
  /// each rule said, also where none found anything and this throws.
  FoundCheckpoint resolve(const std::string& asked, std::vector<Note>& notes,
                          std::vector<PathStep>* steps = nullptr) const;
  /// The place itself, when a format recognises it. Throws kUnsupported when several do.
  std::optional<FoundCheckpoint> recognise(const std::string& path, FileType type) const;
  /// The folder as parts of one state (lib/ops/open/part_folders.h), when it is that.
  std::optional<FoundCheckpoint> recognise_parts(const std::string& path) const;
  /// Rank files together with the folder of their optimizer (lib/ops/open/rank_parts.h).
  std::optional<FoundCheckpoint> with_optimizer(const FoundCheckpoint& files) const;
  /// Checkpoints below a folder, not below each other; hidden names and links left out; natural
  /// order.
  /// What may not be read is left out with a note.
  std::vector<FoundCheckpoint> below(const std::string& folder, std::vector<Note>& notes) const;
  /// The folder of the checkpoint that one rank's folder (mp_rank_XX) belongs to; "" for any other
  /// folder. `file`: only for a file of that name, which needs others next to it or in other ranks'
  /// folders.
  std::string whole_of_rank_folder(const std::string& asked, const std::string& file = "") const;
  std::optional<Pointer> pointer_in(const std::string& folder, const std::string& only = "") const;
  /// Every pointer there is, in the order in which pointer_in takes one.
  std::vector<Pointer> pointers_in(const std::string& folder) const;
  /// Throws kUnsupported where `found` are the parts of one model, of which none is a checkpoint.
  void refuse_parts_alone(const std::string& asked,
                          const std::vector<FoundCheckpoint>& found) const;
  /// Throws kUnsupported for a URL, kNotFound (with the nearest neighbour) for an absent path.
  FileInfo require(const std::string& asked) const;

 private:
  /// What a rule says of a path: a checkpoint, or nothing, and in either case why.
  struct Attempt {
    std::optional<FoundCheckpoint> found;
    std::string why;
  };
  struct Rule {
    std::string_view name;
    Attempt (PathResolver::*attempt)(const std::string& asked, std::vector<Note>& notes) const;
  };
  /// The rules for PATH in their order (ops/open.h).
  static std::span<const Rule> rules_of(FileType type);
  // Rules for files:
  Attempt named_pointer(const std::string& asked, std::vector<Note>& notes) const;
  Attempt part_of_folder(const std::string& asked, std::vector<Note>& notes) const;
  Attempt recognised_file(const std::string& asked, std::vector<Note>& notes) const;
  // Rules for folders:
  Attempt rank_folder(const std::string& asked, std::vector<Note>& notes) const;
  Attempt recognised_folder(const std::string& asked, std::vector<Note>& notes) const;
  Attempt pointer_inside(const std::string& asked, std::vector<Note>& notes) const;
  Attempt parts_inside(const std::string& asked, std::vector<Note>& notes) const;
  Attempt one_below(const std::string& asked, std::vector<Note>& notes) const;
  Attempt found_by(const Pointer& pointer, std::vector<Note>& notes) const;
  /// A folder of weights may have a run's checkpoints below it: rule 1 decides, and says so.
  void note_others_below(const FoundCheckpoint& chosen, std::vector<Note>& notes) const;
  /// Where a file of a set of ranks or shards was asked for by itself: says what is not read.
  void note_others_of_set(FoundCheckpoint& chosen, std::vector<Note>& notes) const;
  /// If `file` is one of several parts of one model (Meta's consolidated.NN.pth), the names of all
  /// parts.
  std::string parts_beside(const std::string& file) const;
  /// The folder of the set that a rank's file belongs to; "": it is no rank's, or alone.
  std::string folder_of_ranks(const std::string& file) const;
  /// Whether the format of `folder` has one rank's folders of this name.
  bool is_rank_folder_of(const std::string& folder, std::string_view name) const;
  /// What recognises the folder; nullptr: nothing, or several formats.
  const FormatDriver* driver_of(const std::string& folder) const;
  /// Nothing was found at (or below) `asked`: says why.
  [[noreturn]] void fail_folder(const std::string& asked) const;
  [[noreturn]] void fail_file(const std::string& asked) const;
  /// With --from: throws naming the format that the place does have.
  void refuse_other_format(const std::string& asked, const std::string& path, FileType type) const;
  /// Throws when files that could be of a checkpoint are symbolic links.
  void refuse_links(const std::string& folder) const;
  /// Throws when one is a FIFO, a socket or a device.
  void refuse_special_files(const std::string& folder) const;
  FoundCheckpoint follow(const Pointer& pointer, std::vector<Note>& notes) const;
  /// A framework's own pointer goes before weights that lie beside it.
  FoundCheckpoint prefer_pointer(FoundCheckpoint found, std::vector<Note>& notes) const;
  /// The checkpoint at this very place, with the parts and the pointer that belong to it.
  std::optional<FoundCheckpoint> found_at(const std::string& path, FileType type,
                                          std::vector<Note>& notes) const;
  void search(const std::string& folder, const std::string& name, int depth,
              std::vector<FoundCheckpoint>& found, std::vector<Note>& notes) const;
  void try_child(const std::string& path, const std::string& child, FileType type, int depth,
                 std::vector<FoundCheckpoint>& found, std::vector<Note>& notes) const;
  void search_child(const std::string& path, const std::string& child, FileType type, int depth,
                    std::vector<FoundCheckpoint>& found, std::vector<Note>& notes) const;

  FileSystem& fs_;
  std::string from_;
  std::uint64_t pickle_limit_bytes_;
};

/// "a/b" from "a" and "b".
std::string join_path(const std::string& folder, const std::string& name);
/// {"a/b", "c"} of "a/b/c"; {".", "c"} of "c".
std::pair<std::string, std::string> split_path(const std::string& path);
/// Several checkpoints lie below: kNotFound listing them.
[[noreturn]] void fail_several(const std::string& asked, const std::vector<FoundCheckpoint>& found);

}  // namespace tessera
