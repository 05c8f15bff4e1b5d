#pragma once
// How dangerous it is to let Python unpickle something: one judgement for scan, summary --globals
// and every conversion. pickle_globals.h decides what Tessera itself may read; this header decides
// what a loader without restrictions (pickle.load, torch.load(weights_only=False), DCP's values)
// would do with it. Nothing is imported or called. docs/safety.md publishes the rules and names.
//
//   kSafe       plain data: what torch.load(weights_only=True) takes by default, and types of plain
//               data that need no class of the reader's
//   kUnknown    an object of a class that no table knows, or a global that is only named
//   kDangerous  a call of a function, or a name that runs code, starts programs, opens files or
//               loads other files, whatever is done with it
//
// A pickle says module and name, not whether a name is a class. Therefore, outside the tables: a
// name of the standard library or of torch that is called (REDUCE, INST, OBJ) is dangerous, but for
// members of enums (a class called with one integer); of other modules a name in small letters is a
// function, one in CamelCase a class. Classes whose instances are made without calling them
// (NEWOBJ, NEWOBJ_EX, copyreg) are unknown.
//
// Pure functions on constant tables; thread-safe.
#include <tessera/state/value.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

enum class Safety : std::uint8_t { kSafe, kUnknown, kDangerous };
/// "safe", "unknown", "dangerous"
std::string_view safety_name(Safety safety);

/// What a pickle does with a global.
enum class GlobalRole : std::uint8_t {
  kNamed,    // it stands there as a value
  kMade,     // class.__new__(class, ...): NEWOBJ, NEWOBJ_EX, copyreg
  kCalled,   // REDUCE, INST, OBJ
  kChanged,  // state, items or keys are set on the global itself
};
/// "named", "made", "called", "changed"
std::string_view role_name(GlobalRole role);

/// An argument of a call, as far as a judgement depends on it.
struct CallArgument {
  enum class Kind : std::uint8_t { kOther, kInteger, kText, kGlobal, kComputed };
  Kind kind = Kind::kOther;  // kComputed: the result of a call, or unknown
  std::string_view module;   // kGlobal
  std::string_view name;     // kGlobal; kText: the text
};

struct Judgement {
  Safety safety = Safety::kSafe;
  GlobalRole role = GlobalRole::kNamed;
  std::string name;  // "pty.spawn"; for copyreg's functions the class they are given
};

/// `module` and `name` as the pickle spells them (canonical_global() is applied). For a call
/// without its arguments: the worst verdict that any arguments could give.
Safety judge_global(std::string_view module, std::string_view name, GlobalRole role);

/// A call with its positional arguments; nullopt: they are not known. `role`: kMade or kCalled.
Judgement judge_call(std::string_view module, std::string_view name, GlobalRole role,
                     std::optional<std::span<const CallArgument>> arguments);

/// Whether a call of this global gives an object that others share, so that setting state or items
/// on it changes more than the result: enum members, loggers.
bool gives_shared_object(std::string_view module, std::string_view name);

/// The worst verdict on unpickling `value`, over the objects in it at any depth; among equal ones,
/// the first. Bytes of an io.BytesIO are judged as the pickle that they are if they are one, as DCP
/// unpickles such items. Nullopt: no objects. Shared nodes are visited once.
std::optional<Judgement> judge_value(const Value& value);

}  // namespace tessera
