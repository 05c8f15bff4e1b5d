#pragma once
// Megatron's tracker file: `latest_checkpointed_iteration.txt`, beside the folder it names.
//
//   run/latest_checkpointed_iteration.txt   "100": Megatron loads run/iter_0000100
//                                           "release": run/release
//
// A writer plans files inside of DST only, and the tracker may come only after DST is whole, so
// convert() writes it, as a commit of its own (storage/stage.h), once DST is published. A tracker
// that names a later iteration, or one that cannot be compared, is left alone, and a note says so.
#include <tessera/state/manifest.h>
#include <tessera/storage/file_system.h>

#include <optional>
#include <string>
#include <string_view>

namespace tessera {

class Tracker {
 public:
  /// The tracker of a result of `format` at `destination` (absolute); nullopt: Megatron would not
  /// look for one of that format or name.
  static std::optional<Tracker> of(std::string_view format, const std::string& destination);

  /// What publish() would do; writes nothing.
  Note plan(const FileSystem& fs) const;
  /// Writes the tracker, or leaves it, and says which. Throws naming the command that writes it by
  /// hand; the checkpoint itself is complete then.
  Note publish(FileSystem& fs) const;

 private:
  enum class Action { kWrite, kKeep, kRefuse };
  struct Decision {
    Action action = Action::kWrite;
    std::string found;  // what the tracker says now; "" = there is none
  };
  Tracker(std::string folder, std::string text) : folder_(std::move(folder)), text_(text) {}
  Decision decide(const FileSystem& fs) const;
  Note note(const Decision& decision, bool planned) const;
  std::string path() const;
  std::string command() const;

  std::string folder_;
  std::string text_;  // "100", "release"
};

}  // namespace tessera
