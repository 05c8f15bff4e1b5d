#include "lib/format/safetensors/delta_refusal.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>

#include "lib/format/safetensors/names.h"

namespace tessera::st {

bool looks_like_delta(const Manifest& manifest) {
  if (manifest.provenance.contains(std::string(kProvenancePrefix) + std::string(kDeltaFile)))
    return true;
  return !manifest.tensors.empty() &&
         std::ranges::all_of(manifest.tensors, [&](const StoredTensor& tensor) {
           return tensor.spec.dtype == DType::kUInt8 && tensor.spec.shape.rank() == 1 &&
                  manifest.provenance.contains(std::string(kProvenancePrefix) +
                                               std::string(tensor.name.view()));
         });
}

void refuse_delta(const DeltaIndex& index) {
  if (index.encoding.empty())
    fail(Code::kUnsupported,
         "deltas of weights, each with its checksum, and no index that says against what",
         "name the folder that has model.safetensors.index.json");
  fail(Code::kUnsupported,
       fmt::format("a delta: the weights of version {}, as they differ from version {} ({}, {})",
                   printable(index.version), printable(index.base_version),
                   printable(index.encoding), printable(index.compression)),
       "--base=PATH names the weights that it begins from");
}

}  // namespace tessera::st
