// FairScale leaves names to its users, so content decides: a few files of each family of numbered
// names are looked into for FairScale's metadata. Numbers may also count steps or layers, and two
// saves may lie side by side; guessing between them would mix two models, so both are refused.
#include "lib/format/fairscale_fsdp/select.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/torch_archive.h>

#include <algorithm>
#include <set>

#include "lib/format/fairscale_fsdp/parts.h"
#include "lib/format/probe_errors.h"
#include "lib/format/torch_files/first_reason.h"
#include "lib/format/torch_files/peek_root.h"

namespace tessera::fairscale {
namespace {

constexpr std::size_t kMaxPeeks = 64;

/// nullopt: the file does not even start like one of torch.save's, or holds too much to look at.
std::optional<bool> has_metadata(const Directory& directory, const std::string& name,
                                 std::uint64_t pickle_limit_bytes) {
  const bool may_have = in_file(name, [&] {
    const auto file = directory.open(name);
    const ByteWindow window = ByteWindow::whole(*file);
    return !looks_like_torch_archive(window) || may_mention(window, kMetadataKey);
  });
  if (!may_have) return false;  // nearly every file: its values are not built
  const std::optional<Value> root = peek_root(directory, name, pickle_limit_bytes);
  if (!root) return std::nullopt;
  return find_metadata(*root) != nullptr;
}

/// Rank files of PyTorch's own FSDP: flat parameters as it calls them, its distributed tensors.
bool is_of_torch_fsdp(const Value& value, int depth = 4) {
  if (value.kind() == Value::Kind::kOpaque) {
    const OpaqueObject& object = value.as_opaque();
    if (object.module.starts_with("torch.distributed.")) return true;
    const Value& arguments =
        object.arguments;  // of _rebuild_from_type_v2: a function and the class
    return arguments.kind() == Value::Kind::kTuple && depth > 0 &&
           std::ranges::any_of(arguments.as_list(), [depth](const Value& argument) {
             return argument.kind() == Value::Kind::kOpaque &&
                    is_of_torch_fsdp(argument, depth - 1);
           });
  }
  if (!value.is_dict() || depth == 0) return false;
  return std::ranges::any_of(value.as_dict(), [depth](const auto& entry) {
    const bool flat = entry.first.is_string() && entry.first.as_string().ends_with("_flat_param");
    return flat || is_of_torch_fsdp(entry.second, depth - 1);
  });
}

bool same_numbers(const FileFamily& a, const FileFamily& b) {
  return std::ranges::equal(
      a.members, b.members, {}, [](const auto& m) { return m.first; },
      [](const auto& m) { return m.first; });
}

/// Ranks count from 0, some users' files from 1; gaps are lost files. Anything sparser counts
/// something else: steps, layers.
bool looks_like_ranks(const FileFamily& family) {
  const std::int64_t first = family.members.begin()->first, last = family.members.rbegin()->first;
  const auto count = static_cast<std::int64_t>(family.members.size());
  return first < count + 2 && last < 2 * count + 16;
}

class Chooser {
 public:
  Chooser(const Directory& directory, std::uint64_t pickle_limit_bytes)
      : directory_(directory),
        pickle_limit_bytes_(pickle_limit_bytes),
        names_(archive_names(directory)),
        families_(find_families(names_)) {}

  /// What the first file that could not be looked at said.
  const std::optional<Status>& unreadable() const { return unreadable_.why(); }

  std::optional<ChosenFiles> run() {
    const FileFamily* main = find_main();
    if (!main) return single();
    refuse_second(*main);
    ChosenFiles out;
    refuse_twins(*main);
    out.family = *main;
    out.counts_from_one = main->members.begin()->first == 1;
    for (const auto& [number, name] : main->members) add(out, number, name);
    for (const FileFamily& family : families_) {
      if (&family == main || family.members.size() < 2 || !same_numbers(family, *main) ||
          shares_files(family, *main))
        continue;
      refuse_torch_fsdp(*main, family);
      for (const auto& [number, name] : family.members) add(out, number, name);
    }
    add_others(out);
    return out;
  }

 private:
  const FileFamily* find_main() {
    std::size_t peeks = 0;
    for (const FileFamily& family : families_) {
      if (family.members.size() < 2 || !looks_like_ranks(family) || ++peeks > kMaxPeeks) continue;
      if (holds_metadata(family)) return &family;
    }
    return nullptr;
  }
  /// By its first file that can be read: a damaged one is the reader's to name.
  bool holds_metadata(const FileFamily& family) {
    constexpr int kTries = 4;
    int tries = 0;
    for (const auto& [number, name] : family.members) {
      if (++tries > kTries) break;
      if (const auto answer = look_into(name)) return *answer;
    }
    return false;
  }
  /// nullopt: it cannot be read, or does not even start like a file of torch.save's.
  std::optional<bool> look_into(const std::string& name) {
    try {
      return has_metadata(directory_, name, pickle_limit_bytes_);
    } catch (const Error& error) {
      unreadable_.add(error.status());
      return std::nullopt;
    }
  }
  static bool shares_files(const FileFamily& a, const FileFamily& b) {
    for (const auto& [number, name] : a.members)
      for (const auto& [other, theirs] : b.members)
        if (name == theirs) return true;
    return false;
  }
  static void refuse_twins(const FileFamily& family) {
    if (family.twins.empty()) return;
    const auto& [number, name] = *family.twins.begin();
    fail(Code::kUnsupported,
         fmt::format("{} and {} are both files of number {}", printable(family.members.at(number)),
                     printable(name), number),
         "move the one that does not belong to this checkpoint out of the folder");
  }
  /// Two saves side by side, each with rank files of its own.
  void refuse_second(const FileFamily& main) {
    std::size_t peeks = 0;
    for (const FileFamily& family : families_) {
      if (&family == &main || family.members.size() < 2 || !looks_like_ranks(family) ||
          shares_files(family, main) || ++peeks > kMaxPeeks)
        continue;
      if (holds_metadata(family))
        fail(Code::kUnsupported,
             fmt::format("rank files of two checkpoints are in one folder: {}*{} and {}*{}",
                         printable(main.prefix), printable(main.suffix), printable(family.prefix),
                         printable(family.suffix)),
             "move one set into a folder of its own");
    }
  }
  void refuse_torch_fsdp(const FileFamily& main, const FileFamily& family) const {
    for (const auto& [number, name] : family.members) {
      if (!is_torch_fsdp_file(name)) continue;
      fail(
          Code::kUnsupported,
          fmt::format("rank files of two frameworks are in one folder: FairScale's {}*{} and {}*{} "
                      "of PyTorch's FSDP",
                      printable(main.prefix), printable(main.suffix), printable(family.prefix),
                      printable(family.suffix)),
          "move one set into a folder of its own");
    }
  }
  bool is_torch_fsdp_file(const std::string& name) const {
    try {
      const std::optional<Value> root = peek_root(directory_, name, pickle_limit_bytes_);
      return root && is_of_torch_fsdp(*root);
    } catch (const Error& error) {
      rethrow_unless_of_content(error);
      return false;  // damaged: the reader says so
    }
  }
  void add(ChosenFiles& out, std::int64_t number, const std::string& name) {
    const auto rank = static_cast<std::size_t>(number - (out.counts_from_one ? 1 : 0));
    if (out.ranks.size() <= rank) out.ranks.resize(rank + 1);
    out.ranks[rank].push_back(name);
    taken_.insert(name);
  }
  void add_others(ChosenFiles& out) const {
    for (const std::string& name : names_)
      if (!taken_.contains(name)) out.others.push_back(name);
  }

  /// One process: the one file with metadata.
  std::optional<ChosenFiles> single() {
    std::vector<std::string> with;
    for (std::size_t i = 0; i < names_.size() && i < kMaxPeeks; ++i)
      if (look_into(names_[i]).value_or(false)) with.push_back(names_[i]);
    if (with.empty()) return std::nullopt;
    if (with.size() > 1) refuse_several(with[0], with[1]);
    ChosenFiles out;
    out.ranks = {{with[0]}};
    taken_.insert(with[0]);
    add_others(out);
    return out;
  }

  /// Their numbers, if they have any, are not those of ranks that stand together.
  [[noreturn]] void refuse_several(const std::string& one, const std::string& other) const {
    for (const FileFamily& family : families_) {
      const auto has = [&](const std::string& name) {
        return std::ranges::any_of(family.members, [&](const auto& m) { return m.second == name; });
      };
      if (family.members.size() < 2 || !has(one) || !has(other)) continue;
      fail(Code::kUnsupported,
           fmt::format("{} and {} both hold FairScale's metadata, and the files here have the "
                       "numbers {} to {}, which are too few for all ranks and too many for one",
                       printable(one), printable(other), family.members.begin()->first,
                       family.members.rbegin()->first),
           "bring the other ranks' files here, or move one of these into a folder of its own");
    }
    fail(Code::kUnsupported,
         fmt::format("{} and {} both hold FairScale's metadata, and no rank numbers distinguish "
                     "them",
                     printable(one), printable(other)),
         "move one of them into a folder of its own");
  }

  const Directory& directory_;
  std::uint64_t pickle_limit_bytes_;
  std::vector<std::string> names_;
  std::vector<FileFamily> families_;
  std::set<std::string> taken_;
  FirstReason unreadable_;
};

}  // namespace

std::optional<Value> peek_root(const Directory& directory, const std::string& name,
                               std::uint64_t pickle_limit_bytes) {
  return in_file(name, [&] { return peek_archive_root(directory, name, pickle_limit_bytes); });
}

std::optional<ChosenFiles> choose_files(const Place& place, Status* unreadable) {
  if (place.file.empty()) {
    Chooser chooser(*place.directory, place.pickle_limit_bytes);
    auto chosen = chooser.run();
    if (!chosen && unreadable && chooser.unreadable()) *unreadable = *chooser.unreadable();
    return chosen;
  }
  if (!has_metadata(*place.directory, place.file, place.pickle_limit_bytes).value_or(false))
    return std::nullopt;
  ChosenFiles out;
  out.ranks = {{place.file}};
  return out;
}

}  // namespace tessera::fairscale
