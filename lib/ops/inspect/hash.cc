#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/ls.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/listed_tensors.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <memory>

#include "lib/ops/inspect/content_digests.h"
#include "lib/ops/inspect/listing.h"
#include "lib/ops/seal/root_lines.h"

namespace tessera {
std::string values_root(const std::vector<HashedValue>& values) {
  std::vector<std::string> lines;
  for (const HashedValue& v : values)
    lines.push_back(
        fmt::format("{}\t{}\t{}\n", v.is_dict ? "dict" : "value", tsv(v.name), v.sha256));
  return root_of(std::move(lines));
}

std::string values_root_v1(const std::vector<std::pair<std::string, Value>>& values) {
  ValueDict dict;
  for (const auto& [name, value] : values) dict.emplace_back(Value::string(name), value);
  return hex(sha256(as_bytes(canonical_json(Value::dict(std::move(dict))))));
}

HashReport hash_checkpoint(OpenedCheckpoint& checkpoint, const TransferOptions& transfer) {
  const std::vector<std::uint32_t> leaves = listed_tensors(checkpoint.manifest);
  checkpoint.locate(leaves, read_options(transfer));
  HashReport report;
  report.path = checkpoint.path;
  report.format = checkpoint.manifest.format;
  const std::vector<std::string> digests = in_operation("hash", [&] {
    return hash_tensors(checkpoint.manifest, *checkpoint.directory, leaves, looking(transfer));
  });
  TensorDigests parts;
  for (std::size_t i = 0; i < leaves.size(); ++i)
    if (checkpoint.manifest.tensors[leaves[i]].embedded) parts[leaves[i]] = digests[i];
  const auto contents = in_operation("hash", [&] {
    return std::make_unique<ContentDigests>(checkpoint, transfer, std::move(parts));
  });
  checkpoint.check_archives();
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const StoredTensor& tensor = checkpoint.manifest.tensors[leaves[i]];
    const auto extents = tensor.spec.shape.extents();
    report.tensors.push_back({tensor.name,
                              std::string(torch_name(tensor.spec.dtype)),
                              {extents.begin(), extents.end()},
                              digests[i],
                              contents->quantizer(tensor)});
    report.bytes += static_cast<std::uint64_t>(tensor.spec.size_bytes());
  }
  report.value_digests = contents->values();
  report.not_compared = static_cast<std::uint64_t>(
      std::ranges::count(report.value_digests, false, &HashedValue::whole));
  report.root = content_root(report.tensors);
  report.root_v1 = content_root_v1(report.tensors);
  report.values_root = values_root(report.value_digests);
  report.values = json_values(checkpoint.manifest, contents->tensors());
  report.values_root_v1 = values_root_v1(report.values);
  report.notes = checkpoint.manifest.notes;
  return report;
}

}  // namespace tessera
