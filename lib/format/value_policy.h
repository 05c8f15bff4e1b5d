#pragma once
// What a writer does with state that is no tensor: --values and --opaque, and finding the objects
// they are about.
#include <tessera/format/format_driver.h>
#include <tessera/state/value.h>

#include <string_view>
#include <vector>

namespace tessera {

/// Values that share nodes may expand to more than a writer should walk.
inline constexpr std::uint64_t kMaxWalkedValues = std::uint64_t{1} << 22;

/// The first opaque object inside (keys and attributes included), or nullptr.
const OpaqueObject* find_opaque(const Value& value, ValueBudget& budget);

/// Decides, entry by entry, whether a value goes along. What does not is noted; kUnsupported where
/// the user wants an error, or where an object cannot be held and nobody said to drop it.
class ValuePolicy {
 public:
  /// `holds_opaque`: the format can hold objects of unknown classes. `format`: its id, for
  /// messages.
  ValuePolicy(const TargetRequest& request, bool holds_opaque, std::string_view format,
              std::vector<Note>& notes)
      : request_(request), holds_opaque_(holds_opaque), format_(format), notes_(notes) {}

  bool keeps(const StateEntry& entry);
  /// The same for a container's attributes, which are dropped alone.
  bool keeps_attributes(const ContainerNote& container);
  /// The class of the first object that was kept, "" = none.
  const std::string& kept_class() const { return kept_class_; }

 private:
  bool keeps_opaque(const std::string& what, const OpaqueObject& opaque);
  void drop(const std::string& what, const std::string& why);

  const TargetRequest& request_;
  bool holds_opaque_;
  std::string_view format_;
  std::vector<Note>& notes_;
  ValueBudget budget_{kMaxWalkedValues};
  std::string kept_class_;
};

}  // namespace tessera
