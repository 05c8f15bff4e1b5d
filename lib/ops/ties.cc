#include "lib/ops/ties.h"

#include <tessera/base/error.h>
#include <tessera/state/roles.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace tessera {

namespace {

constexpr std::int64_t kSampleNumel = 64;

/// Where a tensor of one chunk lies, if that says all about its bytes.
using StoredPlace = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::uint8_t,
                               std::vector<std::int64_t>>;
std::optional<StoredPlace> place_of(const Manifest& manifest, const StoredTensor& tensor) {
  if (tensor.chunk_count != 1) return std::nullopt;
  const Source& source = manifest.source(tensor, 0);
  if (source.kind != Source::Kind::kExtent || source.length == 0) return std::nullopt;
  std::vector<std::int64_t> strides;
  if (source.side != 0) strides = manifest.strides[source.side - 1];
  return StoredPlace{source.file, source.offset, source.length, source.flags, std::move(strides)};
}

struct Sample {
  Bytes bytes;
  bool varied = false;
};

Sample take_sample(const Manifest& manifest, const TensorReader& reader, std::uint32_t index) {
  const TensorSpec& spec = manifest.tensors[index].spec;
  std::int64_t numel = spec.shape.numel();
  std::int64_t count = std::min(kSampleNumel, numel);
  Sample sample;
  auto es = static_cast<std::size_t>(element_bytes(spec.dtype));
  for (std::int64_t begin : {std::int64_t{0}, (numel - count) / 2, numel - count}) {
    Bytes part(static_cast<std::size_t>(count) * es);
    reader.read(index, begin, begin + count, part);
    sample.bytes.insert(sample.bytes.end(), part.begin(), part.end());
  }
  for (std::size_t at = es; at < sample.bytes.size(); at += es) {
    if (!std::equal(sample.bytes.begin(), sample.bytes.begin() + static_cast<std::ptrdiff_t>(es),
                    sample.bytes.begin() + static_cast<std::ptrdiff_t>(at))) {
      sample.varied = true;
    }
  }
  return sample;
}

Sha256Digest digest_of(const TensorReader& reader, std::uint32_t index) {
  Sha256 hash;
  std::uint32_t list[] = {index};
  reader.stream(list, [&hash](const TensorReader::Block& block) { hash.update(block.bytes); });
  return hash.finish();
}

}  // namespace

std::vector<std::pair<std::string, std::string>> find_ties(const Manifest& manifest,
                                                           const Directory& directory,
                                                           const TransferOptions& options) {
  TransferOptions quiet = options;
  quiet.progress = nullptr;
  TensorReader reader(manifest, directory, quiet);
  std::vector<std::pair<std::string, std::string>> ties;
  std::map<std::pair<std::string, StoredPlace>, std::uint32_t> by_place;
  std::map<std::pair<std::string, Bytes>, std::vector<std::uint32_t>> by_sample;
  for (std::uint32_t i : leaf_tensors(manifest)) {
    const StoredTensor& tensor = manifest.tensors[i];
    if (is_sub_byte(tensor.spec.dtype) || tensor.spec.shape.numel() == 0) continue;
    std::string kind = tensor.spec.to_string();
    if (auto place = place_of(manifest, tensor)) {
      auto [slot, fresh] = by_place.try_emplace({kind, *place}, i);
      if (!fresh) {
        ties.emplace_back(tensor.name, manifest.tensors[slot->second].name);
        continue;
      }
    }
    if (tensor.spec.shape.rank() < 2) continue;
    Sample sample = take_sample(manifest, reader, i);
    if (sample.varied) by_sample[{kind, std::move(sample.bytes)}].push_back(i);
  }
  for (const auto& [key, indices] : by_sample) {
    if (indices.size() < 2) continue;
    std::map<Sha256Digest, std::uint32_t> first;
    for (std::uint32_t i : indices) {
      auto [slot, fresh] = first.try_emplace(digest_of(reader, i), i);
      if (!fresh) ties.emplace_back(manifest.tensors[i].name, manifest.tensors[slot->second].name);
    }
  }
  std::sort(ties.begin(), ties.end());
  return ties;
}

void drop_ties(Manifest& manifest, const std::vector<std::pair<std::string, std::string>>& ties) {
  if (ties.empty()) return;
  std::set<std::string_view> dropped;
  for (const auto& tie : ties) dropped.insert(tie.first);
  std::vector<bool> keep;
  for (const StateEntry& entry : manifest.state.entries)
    keep.push_back(!dropped.contains(entry.name));
  keep_entries(manifest, keep);
}

}  // namespace tessera
