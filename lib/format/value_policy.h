#pragma once
// What a writer does with state that is no tensor: --values and --opaque, and finding the objects
// they are about.
#include <tessera/format/format_driver.h>
#include <tessera/state/roles.h>
#include <tessera/state/value.h>

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Hint of formats that hold an optimizer's state by the names of its parameters (require_names()).
inline constexpr std::string_view kKeepIdsHint =
    "torch-save and torch-dcp keep the ids; --only model leaves the optimizer out";

/// Values that share nodes may expand to more than a writer should walk.
inline constexpr std::uint64_t kMaxWalkedValues = std::uint64_t{1} << 22;

/// What a format makes of objects of classes that no table knows, and of an io.BytesIO.
struct ObjectSupport {
  bool opaque = false;  // it can hold them
  bool bytes_io =
      true;  // raw bytes of a DCP item have a form of their own here; else an object like others
};

/// Class of the first object inside (keys and attributes included) that needs a pickle to live in;
/// "" = none.
std::string find_object(const Value& value, const ObjectSupport& support, ValueBudget& budget);

/// For formats that keep a model's tensors by name, apart from its values: a list that holds both
/// would lose its order. Throws kUnsupported naming it. `format`: its id.
void refuse_split_lists(const StateDict& state, const Roles& roles, std::string_view format);

/// For formats that hold objects, whose loaders make them anew, some without asking: values and
/// attributes that would call functions then (encoding/pickle_safety.h) are kCorrupt whatever was
/// asked for, but for --opaque drop, which leaves them out with a note (keep_entries()). The names
/// of entries that went.
std::vector<std::string> keep_out_danger(Manifest& manifest, KeepPolicy opaque,
                                         std::vector<Note>& notes);

/// Decides, entry by entry, whether a value goes along. What does not is noted; kUnsupported where
/// the user wants an error, or where an object cannot be held and nobody said to drop it. Objects
/// that are kept are noted (CK035).
class ValuePolicy {
 public:
  /// `format`: its id, for messages.
  ValuePolicy(const TargetRequest& request, ObjectSupport support, std::string_view format,
              std::vector<Note>& notes, std::vector<LeftOut>& left_out)
      : request_(request), support_(support), format_(format), notes_(notes), left_out_(left_out) {}

  bool keeps(const StateEntry& entry);
  /// The same for a container's attributes, which are dropped alone.
  bool keeps_attributes(const ContainerNote& container);

 private:
  bool keeps_value(const LeftOut& entry, const Value& value);
  void note_objects(const std::string& class_name);
  void drop(LeftOut entry, std::string why);

  const TargetRequest& request_;
  ObjectSupport support_;
  std::string_view format_;
  std::vector<Note>& notes_;
  std::vector<LeftOut>& left_out_;
  ValueBudget budget_{kMaxWalkedValues};
  bool noted_objects_ = false;
};

}  // namespace tessera
