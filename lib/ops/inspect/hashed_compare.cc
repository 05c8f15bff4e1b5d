#include "lib/ops/inspect/hashed_compare.h"

#include <map>
#include <string_view>

namespace tessera {

std::vector<HashedDifference> compare_hashed(const std::vector<HashedTensor>& expected,
                                             const std::vector<HashedTensor>& found) {
  using What = HashedDifference::What;
  std::map<std::string_view, const HashedTensor*> there;
  for (const HashedTensor& tensor : found) there[tensor.name] = &tensor;
  std::vector<HashedDifference> out;
  for (const HashedTensor& want : expected) {
    const auto place = there.find(want.name);
    if (place == there.end()) {
      out.push_back({What::kMissing, want.name, "", ""});
      continue;
    }
    const HashedTensor& got = *place->second;
    if (got.dtype != want.dtype || got.shape != want.shape) {
      out.push_back({What::kSpec, want.name, "", ""});
    } else if (got.quantizer != want.quantizer) {
      out.push_back({What::kQuantizer, want.name, "", ""});
    } else if (got.sha256 != want.sha256) {
      out.push_back({What::kContent, want.name, want.sha256, got.sha256});
    }
    there.erase(place);
  }
  for (const auto& [name, tensor] : there)
    out.push_back({What::kUnexpected, std::string(name), "", ""});
  return out;
}

}  // namespace tessera
