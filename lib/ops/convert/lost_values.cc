#include "lib/ops/convert/lost_values.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <cstdint>
#include <string>

#include "lib/format/value_policy.h"
#include "lib/state/model_roots.h"
#include "lib/state/tensor_wrapper.h"

namespace tessera {
namespace {

std::uint64_t tensors_in(const Value& value) {
  std::uint64_t count = 0;
  for_each_tensor(value, [&count](std::uint32_t) { ++count; });
  return count;
}

std::string class_of(const StateEntry& entry) {
  ValueBudget budget(kMaxWalkedValues);
  return printable(find_object(entry.value, {.opaque = false, .bytes_io = true}, budget));
}

std::string kind_of(const StateEntry& entry) {
  if (entry.value.kind() == Value::Kind::kTuple) return "a tuple";
  if (entry.value.kind() == Value::Kind::kList) return "a list";
  const std::string object = class_of(entry);
  return object.empty() ? "a dict that the checkpoint keeps as one value"
                        : fmt::format("an object of class {}", object);
}

[[noreturn]] void refuse_weights(const StateEntry& entry) {
  const std::uint64_t tensors = tensors_in(entry.value);
  const std::string inside =
      tensors == 0 ? ""
                   : fmt::format(", with {} tensor{} inside", tensors, tensors == 1 ? "" : "s");
  fail(Code::kUnsupported,
       fmt::format("\"{}\" is no plain tensor but {}{}: --to hf would write the model without it",
                   printable(entry.name), kind_of(entry), inside),
       fmt::format("save the model's plain state_dict() and convert that; --to torch-save keeps it "
                   "as it is; --exclude '{}' leaves it out",
                   printable(entry.name)));
}

}  // namespace

void refuse_lost_values(const Manifest& manifest, const Roles& roles, const TargetRequest& request,
                        bool dequantizes) {
  const bool may_go = request.opaque == KeepPolicy::kDrop || request.values == KeepPolicy::kDrop;
  for (std::size_t i = 0; i < manifest.state.entries.size(); ++i) {
    const StateEntry& entry = manifest.state.entries[i];
    if (entry.value.is_tensor()) continue;
    // --dequantize makes a tensor of it, or refuses.
    if (dequantizes && !wrapper_class(entry.value).empty()) continue;
    const bool is_model = roles.entries[i].role == Role::kModel;
    const bool is_kept = request.values == KeepPolicy::kKeep && class_of(entry).empty();
    if (is_model && !may_go && !is_kept && holds_weights(entry.value)) refuse_weights(entry);
    if (is_kept) continue;
    const char* hint = "--exclude (or --only model) says that it may go";
    if (request.values == KeepPolicy::kError)
      fail(Code::kUnsupported,
           fmt::format("\"{}\" is no tensor, and --to hf leaves it out (--values error)",
                       printable(entry.name)),
           hint);
    if (request.opaque != KeepPolicy::kError) continue;
    if (const std::string object = class_of(entry); !object.empty())
      fail(Code::kUnsupported,
           fmt::format("\"{}\" holds an object of class {}, and --to hf leaves it out (--opaque "
                       "error)",
                       printable(entry.name), object),
           hint);
  }
}

}  // namespace tessera
