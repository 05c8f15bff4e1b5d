#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/extension.h>

namespace tessera::fsdp {
namespace {

[[noreturn]] void missing(const char* function, const std::string& name) {
  fail(Code::kInvalidArgument,
       fmt::format("the extension says that \"{}\" is transformed and does not define {}", name,
                   function));
}

}  // namespace

std::vector<StoredPart> Extension::post_unflatten(const torch::nn::Module&, const std::string& name,
                                                  const at::Tensor&) const {
  missing("post_unflatten()", name);
}

at::Tensor Extension::pre_load(const torch::nn::Module&, const std::string& name,
                               const std::vector<StoredPart>&) const {
  missing("pre_load()", name);
}

}  // namespace tessera::fsdp
