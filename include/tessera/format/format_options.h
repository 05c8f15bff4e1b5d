#pragma once
// What a user may ask of one format beyond reading or writing it.
//
//   declared once    kZeroStageFlag in format/deepspeed_zero.h: flag, value, help
//   taken            the driver lists it in Capabilities::reads_with or writes_with
//   given            request.own.set(kZeroStageFlag, 3)
//   reaches driver   request.own.get(kZeroStageFlag)
//
// Flags, help, completion and man pages are made from the declarations, and so is the text by which
// --resume recognises the same run. What the format at hand does not take is refused by the flag's name
// (require_taken in registry.h), never ignored. An option of several formats is one object.
#include <any>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

struct FormatOption {
  /// How a value is typed, and which T its OptionOf has.
  enum class Kind : std::uint8_t {
    kSwitch,  // bool
    kChoice,  // std::int64_t, one of "1|2|3"
    kSize,    // std::uint64_t bytes
    kFile,    // std::string: what the named file says
    kPath,    // std::string: a path, or "" where the flag is given without one
    kHanded,  // set by operations, not by a flag
  };
  Kind kind = Kind::kHanded;
  std::string_view flag;         // "--zero-stage"
  std::string_view placeholder;  // "1|2|3"; "" of a switch
  std::string_view help;         // one line, as --help prints it
};

/// An option whose value is a T. T{} is what a driver gets where it was not given.
template <class T>
struct OptionOf : FormatOption {
  using Type = T;
};

/// The options that were given, with their values. A value type.
class FormatSettings {
 public:
  template <class T>
  void set(const OptionOf<T>& option, typename OptionOf<T>::Type value) {
    put(option, std::any(std::move(value)));
  }
  /// `value` holds the T of the option's kind.
  void put(const FormatOption& option, std::any value);
  template <class T>
  const T* find(const OptionOf<T>& option) const {
    const auto found = values_.find(option.flag);
    return found == values_.end() ? nullptr : std::any_cast<T>(&found->second.value);
  }
  template <class T>
  T get(const OptionOf<T>& option) const {
    const T* value = find(option);
    return value != nullptr ? *value : T{};
  }
  /// Given by flags (kHanded ones left out), by the flags' names.
  std::vector<const FormatOption*> given() const;
  /// Flag and value of these as text: two settings that ask for the same have equal texts.
  std::vector<std::pair<std::string, std::string>> texts() const;

 private:
  struct Given {
    const FormatOption* option = nullptr;
    std::any value;
  };
  std::map<std::string_view, Given> values_;
};

using OptionList = std::span<const FormatOption* const>;

// Requests that several formats take. Their values are fields of TargetRequest; these objects only
// name the flags.
inline constexpr FormatOption kWorldSizeFlag{FormatOption::Kind::kHanded, "--world-size", "N",
                                             "number of writing ranks of the result"};
inline constexpr FormatOption kMeshFlag{FormatOption::Kind::kHanded, "--mesh", "DIMS",
                                        "ranks as a mesh of named dims, as dp=2,tp=4"};
inline constexpr FormatOption kPlacementsFlag{
    FormatOption::Kind::kHanded, "--placements", "GLOB=P,P",
    "how tensors that match are laid on the mesh: shard(d), strided(d,f) or replicate, one per "
    "dim; first match wins"};
inline constexpr FormatOption kReplicateFlag{FormatOption::Kind::kHanded, "--replicate", "GLOB",
                                             "store tensors that match as one chunk"};

}  // namespace tessera
