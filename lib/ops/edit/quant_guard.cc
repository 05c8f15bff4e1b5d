#include "lib/ops/edit/quant_guard.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <unordered_map>

namespace tessera {
namespace {

bool is_of_weight(QuantPart part) {
  return part != QuantPart::kNone && part != QuantPart::kCodes && part != QuantPart::kCache;
}

}  // namespace

void refuse_codes_alone(const Manifest& manifest, const std::set<std::string>& changed,
                        const std::set<std::string>& taken, std::string_view by, bool rows_alone) {
  const std::vector<QuantPart> parts = quant_parts(manifest);
  const Roles roles = find_roles(manifest.state);
  std::unordered_map<std::string_view, std::string_view> codes;  // by module, and by their own name
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const Value& value = manifest.state.entries[i].value;
    const std::string_view fqn = roles.entries[i].fqn.view();
    if (roles.entries[i].role != Role::kModel || !value.is_tensor() ||
        parts[value.tensor_index()] != QuantPart::kCodes || !changed.contains(std::string(fqn)))
      continue;
    codes.emplace(module_of(fqn), fqn);
    codes.emplace(fqn, fqn);
  }
  if (codes.empty()) return;
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const Value& value = manifest.state.entries[i].value;
    const std::string_view fqn = roles.entries[i].fqn.view();
    if (roles.entries[i].role != Role::kModel || !value.is_tensor() ||
        !is_of_weight(parts[value.tensor_index()]) || taken.contains(std::string(fqn)))
      continue;
    const StoredTensor& part = manifest.tensors[value.tensor_index()];
    const auto found = codes.find(module_of(fqn));
    if (found == codes.end() || (rows_alone && part.spec.shape.numel() == 1)) continue;
    fail(Code::kUnsupported,
         fmt::format("{} would change \"{}\", which is quantized, without \"{}\" beside it", by,
                     printable(found->second), printable(fqn)),
         "--dequantize makes plain weights first");
  }
}

std::vector<Note> parts_left_alone(const Manifest& manifest, const std::vector<QuantPart>& before) {
  const std::vector<QuantPart> after = quant_parts(manifest);
  std::int64_t alone = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < before.size(); ++i)
    if (before[i] != QuantPart::kNone && after[i] == QuantPart::kNone && alone++ == 0) first = i;
  if (alone == 0) return {};
  return {{Finding::kMissingScale, Severity::kWarning,
           fmt::format("{} of quantized weights: by the new names codes and scales do not belong "
                       "together; rename both alike",
                       with_noun(alone, "tensor")),
           "", manifest.tensors[first].name}};
}

}  // namespace tessera
