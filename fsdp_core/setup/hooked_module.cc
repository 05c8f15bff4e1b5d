// What module.h's templates need that is not a template.
#include <c10/util/Type.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/module.h>
#include <torch/nn/cloneable.h>

#include <map>
#include <string_view>

namespace tessera::fsdp::detail {
struct NameAccess {};
}  // namespace tessera::fsdp::detail

// A module keeps its name private, and by default takes it from its dynamic type at the first
// question. Cloneable is its friend.
template <>
class torch::nn::Cloneable<tessera::fsdp::detail::NameAccess> {
 public:
  static std::optional<std::string>& name(const Module& module) { return module.name_; }
};

namespace tessera::fsdp::detail {

bool name_after(const torch::nn::Module& module, const std::type_info& type) {
  std::optional<std::string>& name = torch::nn::Cloneable<NameAccess>::name(module);
  if (!name) name = c10::demangle(type.name());
  return true;
}

void refuse_module_call(const char* call, const torch::nn::Module& module) {
  static const std::map<std::string_view, const char*> instead = {
      {"clone",
       "clone the plain model before fully_shard, or load its state into another sharded model"},
      {"to",
       "move and cast the plain model before fully_shard; Options::device and "
       "Options::mixed_precision do it there"},
      {"save",
       "use tessera::save(path, fsdp::state_dict(model), ranks), which writes the whole tensors of "
       "all ranks"},
      {"load",
       "use tessera::load(path, fsdp::state_dict(model), ranks), which reads into the shards in "
       "place"},
      {"hold",
       "make the module through its holder, or as std::make_shared<fsdp::Module<Impl>>(...)"},
  };
  const auto hint = instead.find(call);
  fail(Code::kUnsupported,
       fmt::format("{}() on a module of class {} whose parameters are sharded: it would see this "
                   "rank's shards only",
                   call, module.name()),
       hint == instead.end() ? "" : hint->second);
}

void refuse_output_type(const std::type_info& type) {
  fail(
      Code::kUnsupported,
      fmt::format("the forward of a unit returns a {}, in which its output tensors cannot be found",
                  c10::demangle(type.name())),
      "return tensors in std containers, or declare beside the type: "
      "template <class F> void visit_tensors(Type& value, F&& visit) { visit(value.member); }");
}

void refuse_reference_result(const std::type_info& type) {
  fail(Code::kUnsupported,
       fmt::format("the forward of a unit returns a reference to {}", c10::demangle(type.name())),
       "return it by value: tensors are handles");
}

}  // namespace tessera::fsdp::detail
