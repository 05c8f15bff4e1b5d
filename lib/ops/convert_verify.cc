#include "lib/ops/convert_verify.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/ls.h>

#include <map>

namespace tessera {

namespace {

std::vector<HashedTensor> hash_leaves(const OpenedCheckpoint& checkpoint,
                                      const TransferOptions& transfer) {
  std::vector<std::uint32_t> leaves = leaf_tensors(checkpoint.manifest);
  std::vector<std::string> sums =
      hash_tensors(checkpoint.manifest, *checkpoint.directory, leaves, transfer);
  std::vector<HashedTensor> out;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const StoredTensor& tensor = checkpoint.manifest.tensors[leaves[i]];
    std::span<const std::int64_t> extents = tensor.spec.shape.extents();
    out.push_back({tensor.name,
                   std::string(torch_name(tensor.spec.dtype)),
                   {extents.begin(), extents.end()},
                   sums[i]});
  }
  return out;
}

void compare_tensors(const std::vector<HashedTensor>& source,
                     const std::vector<HashedTensor>& written, std::vector<std::string>& findings) {
  std::map<std::string_view, const HashedTensor*> there;
  for (const HashedTensor& tensor : written) there[tensor.name] = &tensor;
  for (const HashedTensor& tensor : source) {
    auto found = there.find(tensor.name);
    if (found == there.end()) {
      findings.push_back(fmt::format("tensor \"{}\" is missing in the result", tensor.name));
      continue;
    }
    const HashedTensor& other = *found->second;
    if (tensor.dtype != other.dtype || tensor.shape != other.shape) {
      findings.push_back(fmt::format("tensor \"{}\" has another type or shape", tensor.name));
    } else if (tensor.sha256 != other.sha256) {
      findings.push_back(
          fmt::format("tensor \"{}\" has other bytes: sha256 {} in the source, {} in "
                      "the result",
                      tensor.name, tensor.sha256, other.sha256));
    }
    there.erase(found);
  }
  for (const auto& [name, tensor] : there) {
    findings.push_back(fmt::format("tensor \"{}\" is not in the source", name));
  }
}

void compare_values(OpenedCheckpoint& source, OpenedCheckpoint& written, bool may_drop,
                    const TransferOptions& transfer, std::vector<std::string>& findings) {
  std::map<std::string, std::string> there;
  for (const auto& [name, value] : json_values(written, transfer))
    there[name] = canonical_json(value);
  for (const auto& [name, value] : json_values(source, transfer)) {
    auto found = there.find(name);
    if (found == there.end()) {
      if (!may_drop) findings.push_back(fmt::format("value \"{}\" is missing in the result", name));
      continue;
    }
    if (found->second != canonical_json(value)) {
      findings.push_back(fmt::format("value \"{}\" differs", name));
    }
    there.erase(found);
  }
  for (const auto& [name, value] : there) {
    findings.push_back(fmt::format("value \"{}\" is not in the source", name));
  }
}

}  // namespace

VerifyProof prove_equal(OpenedCheckpoint& source, OpenedCheckpoint& written, bool may_drop,
                        const TransferOptions& transfer) {
  VerifyProof proof;
  proof.tensors = hash_leaves(written, transfer);
  proof.root = content_root(proof.tensors);
  compare_tensors(hash_leaves(source, transfer), proof.tensors, proof.findings);
  compare_values(source, written, may_drop, transfer, proof.findings);
  return proof;
}

}  // namespace tessera
