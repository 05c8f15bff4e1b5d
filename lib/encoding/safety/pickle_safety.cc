#include <tessera/encoding/pickle_globals.h>
#include <tessera/encoding/pickle_safety.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "lib/encoding/safety/pickle_names.h"
#include "lib/encoding/safety/pickle_scan.h"

namespace tessera {
namespace {

constexpr std::string_view kComputedName = "(the result of a call)";

std::string joined(std::string_view module, std::string_view name) {
  return std::string(module).append(".").append(name);
}

/// A class by the custom of Python, or one inside of another: "_Outer.Inner".
bool is_class_path(std::string_view name) {
  while (true) {
    std::string_view part = name.substr(0, name.find('.'));
    const std::size_t taken = part.size();
    part.remove_prefix(std::min(part.find_first_not_of('_'), part.size()));
    if (part.empty() || part.front() < 'A' || part.front() > 'Z') return false;
    if (taken == name.size()) return true;
    name.remove_prefix(taken + 1);
  }
}

bool is_torch(std::string_view module) { return module == "torch" || module.starts_with("torch."); }

bool is_enum_call(std::string_view name,
                  const std::optional<std::span<const CallArgument>>& arguments) {
  return arguments && arguments->size() == 1 &&
         (*arguments)[0].kind == CallArgument::Kind::kInteger && is_class_path(name);
}

/// Types of plain data: what the reader's own table knows. Modules of dataclasses and enums that it
/// knows whole hold what they imported too, so that there only classes count.
bool is_plain_data(std::string_view module, std::string_view name) {
  if (module == "torch._utils" && name == "_rebuild_nested_tensor") return true;
  if (module == "torch.nested._internal.nested_tensor" && name == "_rebuild_njt") return true;
  if (module == "torch.nn.parameter" && name.starts_with("Uninitialized")) return true;
  if (classify_global(module, name) != GlobalUse::Verdict::kKnown) return false;
  return is_known_by_name(module, name) || is_class_path(name);
}

Judgement computed(GlobalRole role) {
  return {Safety::kDangerous, role, std::string(kComputedName)};
}

Judgement worse(Judgement a, Judgement b) { return b.safety > a.safety ? std::move(b) : a; }

Judgement plain_judgement(std::string_view module, std::string_view name, GlobalRole role,
                          const std::optional<std::span<const CallArgument>>& arguments) {
  Safety safety = judge_global(module, name, role);
  if (safety == Safety::kDangerous && role == GlobalRole::kCalled &&
      is_enum_call(name, arguments) &&
      judge_global(module, name, GlobalRole::kNamed) != Safety::kDangerous)
    safety = Safety::kUnknown;
  return {safety, role, joined(module, name)};
}

Judgement argument_as(const CallArgument& argument, GlobalRole role) {
  if (argument.kind == CallArgument::Kind::kComputed) return computed(role);
  if (argument.kind != CallArgument::Kind::kGlobal) return {};
  // NumPy's own maker of bit generators: what it is given stands beside it, and is judged there.
  if (argument.module == "numpy.random._pickle" && argument.name == "__bit_generator_ctor")
    return plain_judgement(argument.module, argument.name, role, {});
  return judge_call(argument.module, argument.name, role, {});
}

/// getattr(class, "member").
Judgement judge_getattr(const std::optional<std::span<const CallArgument>>& arguments) {
  Judgement out{Safety::kDangerous, GlobalRole::kCalled, "builtins.getattr"};
  if (!arguments || arguments->size() != 2 || (*arguments)[0].kind != CallArgument::Kind::kGlobal ||
      (*arguments)[1].kind != CallArgument::Kind::kText)
    return out;
  const auto [module, owner] = canonical_global((*arguments)[0].module, (*arguments)[0].name);
  const std::string_view attribute = (*arguments)[1].name;
  if (is_allowed_getattr(module, owner, attribute)) {
    out.safety = Safety::kSafe;
  } else if (is_enum_member(module, owner, attribute) &&
             judge_global(module, owner, GlobalRole::kNamed) != Safety::kDangerous) {
    out = {is_plain_data(module, owner) ? Safety::kSafe : Safety::kUnknown, GlobalRole::kNamed,
           joined(module, owner)};
  }
  return out;
}

/// copyreg's functions make an instance of the class that is their first argument;
/// _reconstructor(class, base, state) calls __init__ of a base other than object as well.
Judgement judge_copyreg(std::string_view name,
                        const std::optional<std::span<const CallArgument>>& arguments) {
  if (!arguments || arguments->empty() || (*arguments)[0].kind != CallArgument::Kind::kGlobal)
    return computed(GlobalRole::kMade);
  Judgement out = argument_as((*arguments)[0], GlobalRole::kMade);
  if (name != "_reconstructor") return out;
  if (arguments->size() < 2) return out;
  return worse(std::move(out), argument_as((*arguments)[1], GlobalRole::kCalled));
}

/// A walk over a value for the worst object in it.
class ValueJudge {
 public:
  void visit(const Value& value) {
    if (const void* id = value.node_id(); id != nullptr && !seen_.insert(id).second) return;
    switch (value.kind()) {
      case Value::Kind::kList:
      case Value::Kind::kTuple:
      case Value::Kind::kSet:
      case Value::Kind::kFrozenSet:
        return visit(value.as_list());
      case Value::Kind::kDict:
      case Value::Kind::kCounter:
        return visit(value.as_dict());
      case Value::Kind::kOrderedDict:
      case Value::Kind::kDefaultDict:
        visit(value.as_dict());
        return visit(value.attributes());
      case Value::Kind::kBytesIo:
        return bytes_io(value.as_string());
      case Value::Kind::kOpaque:
        return object(value.as_opaque());
      default:
        return;
    }
  }

  std::optional<Judgement> worst;

 private:
  void visit(const ValueList& items) {
    for (const Value& item : items) visit(item);
  }
  void visit(const ValueDict& entries) {
    for (const auto& [key, item] : entries) visit(key), visit(item);
  }

  void object(const OpaqueObject& o) {
    add(judge(o));
    visit(o.arguments);
    visit(o.keyword_arguments);
    visit(o.state);
    visit(o.items);
    visit(o.dict_items);
  }

  static CallArgument argument_of(const Value& value) {
    CallArgument out;
    if (value.is_int()) out.kind = CallArgument::Kind::kInteger;
    if (value.is_string()) {
      out.kind = CallArgument::Kind::kText;
      out.name = value.as_string();
    }
    if (value.kind() != Value::Kind::kOpaque) return out;
    const OpaqueObject& object = value.as_opaque();
    out.kind = CallArgument::Kind::kComputed;
    if (object.how == OpaqueObject::How::kGlobal) {
      out.kind = CallArgument::Kind::kGlobal;
      out.module = object.module;
      out.name = object.name;
    }
    return out;
  }

  static Judgement judge(const OpaqueObject& o) {
    using How = OpaqueObject::How;
    if (o.how == How::kPersistentId || o.how == How::kExtension)
      return {Safety::kUnknown, GlobalRole::kNamed, o.global()};
    if (o.how == How::kGlobal) {
      return {judge_global(o.module, o.name, GlobalRole::kNamed), GlobalRole::kNamed, o.global()};
    }
    std::vector<CallArgument> arguments;
    const GlobalRole role = o.how == How::kReduce ? GlobalRole::kCalled : GlobalRole::kMade;
    const Value::Kind kind = o.arguments.kind();
    if (kind != Value::Kind::kTuple && kind != Value::Kind::kList)
      return judge_call(o.module, o.name, role, {});
    for (const Value& argument : o.arguments.as_list()) arguments.push_back(argument_of(argument));
    return judge_call(o.module, o.name, role, arguments);
  }

  void bytes_io(std::string_view bytes) {
    const PickleScan scan = scan_pickle_bytes(as_bytes(bytes));
    if (!scan.is_pickle()) return;
    for (const PickleUse& use : scan.uses) add({use.safety, use.role, use.name});
  }

  void add(Judgement found) {
    if (!worst || found.safety > worst->safety) worst = std::move(found);
  }

  std::unordered_set<const void*> seen_;
};

}  // namespace

std::string_view safety_name(Safety safety) {
  constexpr std::string_view kNames[] = {"safe", "unknown", "dangerous"};
  return kNames[static_cast<std::size_t>(safety)];
}

std::string_view role_name(GlobalRole role) {
  constexpr std::string_view kNames[] = {"named", "made", "called", "changed"};
  return kNames[static_cast<std::size_t>(role)];
}

Safety judge_global(std::string_view raw_module, std::string_view raw_name, GlobalRole role) {
  const auto [module, name] = canonical_global(raw_module, raw_name);
  if (classify_global(module, name) == GlobalUse::Verdict::kDenied) return Safety::kDangerous;
  if (module == "builtins" && name == "getattr")
    return role == GlobalRole::kNamed ? Safety::kUnknown : Safety::kDangerous;
  if (role == GlobalRole::kChanged) return Safety::kDangerous;
  if (is_plain_data(module, name)) return Safety::kSafe;
  if (is_dangerous_anyhow(module, name)) return Safety::kDangerous;
  if (role != GlobalRole::kCalled || is_harmless_call(module, name)) return Safety::kUnknown;
  if (is_standard_module(module) || is_torch(module)) return Safety::kDangerous;
  return is_class_path(name) ? Safety::kUnknown : Safety::kDangerous;
}

Judgement judge_call(std::string_view raw_module, std::string_view raw_name, GlobalRole role,
                     std::optional<std::span<const CallArgument>> arguments) {
  const auto [module, name] = canonical_global(raw_module, raw_name);
  if (role == GlobalRole::kCalled) {
    if (module == "builtins" && name == "getattr") return judge_getattr(arguments);
    if (module == "copyreg" &&
        (name == "_reconstructor" || name == "__newobj__" || name == "__newobj_ex__"))
      return judge_copyreg(name, arguments);
  }
  Judgement out = plain_judgement(module, name, role, arguments);
  const std::optional<std::size_t> called = called_argument(module, name);
  if (!called) return out;
  if (!arguments) return worse(std::move(out), computed(role));
  for (std::size_t i = 0; i < arguments->size(); ++i) {
    const CallArgument& argument = (*arguments)[i];
    // The others may be classes whose instances are made, or objects that calls have made.
    if (i == *called || argument.kind == CallArgument::Kind::kGlobal)
      out = worse(std::move(out),
                  argument_as(argument, i <= *called ? GlobalRole::kCalled : GlobalRole::kMade));
  }
  return out;
}

bool gives_shared_object(std::string_view module, std::string_view name) {
  return (module == "builtins" && name == "getattr") ||
         (module == "logging" && name == "getLogger") || (module == "re" && name == "_compile");
}

std::optional<Judgement> judge_value(const Value& value) {
  ValueJudge judge;
  judge.visit(value);
  return std::move(judge.worst);
}

}  // namespace tessera
