#include "lib/ops/open/shared_storage.h"

#include <tessera/base/error.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lib/format/findings.h"

namespace tessera {
namespace {

/// A master may be its weight (ZeRO's partitions are both), and a step that many parameters count is
/// one number.
bool is_shared_by_design(const StoredTensor& tensor) {
  return tensor.kind == TensorKind::kMaster ||
         (tensor.kind == TensorKind::kOptim && tensor.spec.shape.rank() == 0);
}

/// Leaves that metadata alone cannot distinguish, more than one at each place. A pending source
/// says which bytes, not in which order a view walks them.
std::vector<std::uint32_t> likely_shared(const Manifest& manifest) {
  std::map<std::tuple<std::string, std::uint32_t, std::uint64_t, std::uint64_t>,
           std::vector<std::uint32_t>>
      places;
  for (std::uint32_t i : leaf_tensors(manifest)) {
    const StoredTensor& tensor = manifest.tensors[i];
    if (tensor.chunk_count != 1 || is_shared_by_design(tensor)) continue;
    const Source& source = manifest.source(tensor, 0);
    const bool in_file =
        source.kind == Source::Kind::kPending || source.kind == Source::Kind::kExtent;
    if (!in_file || source.length == 0) continue;
    places[{tensor.spec.to_string(), source.file, source.offset, source.length}].push_back(i);
  }
  std::vector<std::uint32_t> likely;
  for (const auto& [place, tensors] : places)
    if (tensors.size() > 1) likely.insert(likely.end(), tensors.begin(), tensors.end());
  std::ranges::sort(likely);
  return likely;
}

}  // namespace

std::optional<StoredPlace> stored_place_of(const Manifest& manifest, const StoredTensor& tensor) {
  if (tensor.chunk_count != 1) return std::nullopt;
  const Source& source = manifest.source(tensor, 0);
  if (source.kind != Source::Kind::kExtent || source.length == 0) return std::nullopt;
  std::vector<std::int64_t> strides;
  if (source.side != 0) strides = manifest.strides[source.side - 1];
  return StoredPlace{source.file, source.offset, source.length, source.flags, std::move(strides)};
}

std::vector<std::vector<std::string>> shared_storage(const OpenedCheckpoint& checkpoint) {
  const std::vector<std::uint32_t> likely = likely_shared(checkpoint.manifest);
  if (likely.empty()) return {};
  Manifest located = checkpoint.manifest;
  ReadOptions options;
  options.tolerate_damage = true;
  options.tolerate_io_errors = false;
  try {
    checkpoint.driver->locate(checkpoint.place(), located, likely, options);
  } catch (const Error& error) {
    if (!tolerates(options, error.code())) throw;
    return {};  // verify says what is wrong with it
  }
  std::map<std::pair<std::string, StoredPlace>, std::vector<std::string>> places;
  std::vector<const std::vector<std::string>*> in_order;
  for (std::uint32_t i : likely) {
    const StoredTensor& tensor = located.tensors[i];
    const auto place = stored_place_of(located, tensor);
    if (!place) continue;
    auto& names = places[{tensor.spec.to_string(), *place}];
    if (names.empty()) in_order.push_back(&names);
    names.push_back(tensor.name);
  }
  std::vector<std::vector<std::string>> sets;
  for (const auto* names : in_order)
    if (names->size() > 1) sets.push_back(*names);
  return sets;
}

}  // namespace tessera
