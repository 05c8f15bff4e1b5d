#include "lib/ops/verify/replicas.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/hash.h>

#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "lib/base/damage.h"
#include "lib/state/same_bytes.h"

namespace tessera {
namespace {

/// Two copies of one chunk, by their numbers in the tensor.
struct Pair {
  std::uint32_t tensor = 0;
  std::uint32_t first = 0, second = 0;
};

/// Origin, extents and flat range: the place in the tensor.
std::vector<std::int64_t> place_of(const Chunk& chunk) {
  std::vector<std::int64_t> place = chunk.box.origin;
  for (const std::int64_t extent : chunk.box.shape.extents()) place.push_back(extent);
  place.push_back(chunk.flat_begin);
  place.push_back(chunk.flat_end);
  return place;
}

std::string file_of(const Manifest& manifest, const Source& source) {
  const bool in_file = source.kind != Source::Kind::kInline && source.kind != Source::Kind::kFill;
  return in_file ? manifest.files[source.file].path : "";
}

class CopyComparer {
 public:
  CopyComparer(const OpenedCheckpoint& checkpoint, const TransferOptions& transfer)
      : manifest_(checkpoint.manifest), directory_(*checkpoint.directory), transfer_(transfer) {
    transfer_.check_crc = false;  // of these ranges alone; records are held to their CRCs elsewhere
  }

  CopyComparison run(std::span<const std::uint32_t> tensors, bool read_all) {
    std::vector<Pair> unknown;
    for (const std::uint32_t t : tensors) {
      for (const Pair& pair : pairs_of(t)) {
        const auto known =
            read_all ? std::nullopt
                     : known_equal(manifest_, source(pair, pair.first), source(pair, pair.second));
        if (!known) unknown.push_back(pair);
        if (known == false) add_difference(pair);
      }
    }
    if (!unknown.empty()) read(unknown);
    return std::move(out_);
  }

 private:
  const Source& source(const Pair& pair, std::uint32_t chunk) const {
    return manifest_.source(manifest_.tensors[pair.tensor], chunk);
  }

  std::vector<Pair> pairs_of(std::uint32_t t) const {
    const StoredTensor& tensor = manifest_.tensors[t];
    std::vector<Pair> pairs;
    if (tensor.chunk_count < 2) return pairs;
    std::map<std::vector<std::int64_t>, std::uint32_t> first;  // by place
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
      const Chunk chunk = manifest_.chunk(tensor, c);
      if (chunk.numel() == 0) continue;
      const auto [known, fresh] = first.try_emplace(place_of(chunk), c);
      if (!fresh) pairs.push_back({t, known->second, c});
    }
    return pairs;
  }

  /// All at once; where something cannot be read, pair by pair, so that the rest is compared.
  void read(std::span<const Pair> pairs) {
    try {
      compare(pairs);
    } catch (const Error& error) {
      if (!is_damage(error.code())) throw;
      if (pairs.size() > 1) {
        for (const Pair& pair : pairs) read({&pair, 1});
        return;
      }
      const Status& status = error.status();
      out_.findings.push_back({Finding::kUnreadableBytes, Severity::kError, status.message,
                               status.context.file, manifest_.tensors[pairs[0].tensor].name});
    }
  }

  /// Each copy is a tensor of a manifest of its own, hashed once however many pairs it is in.
  void compare(std::span<const Pair> pairs) {
    Manifest copies;
    copies.format = manifest_.format;
    copies.files = manifest_.files;
    copies.records = manifest_.records;
    copies.strides = manifest_.strides;
    copies.codecs = manifest_.codecs;
    copies.views = manifest_.views;
    copies.inline_bytes = manifest_.inline_bytes;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> number;
    const auto add = [&](std::uint32_t t, std::uint32_t c) {
      const auto [known, fresh] =
          number.try_emplace({t, c}, static_cast<std::uint32_t>(copies.tensors.size()));
      if (fresh) add_copy(copies, manifest_.tensors[t], c);
      return known->second;
    };
    for (const Pair& pair : pairs) {
      add(pair.tensor, pair.first);
      add(pair.tensor, pair.second);
    }
    std::vector<std::uint32_t> all(copies.tensors.size());
    std::iota(all.begin(), all.end(), 0);
    const std::vector<std::string> sums = hash_tensors(copies, directory_, all, transfer_);
    for (const StoredTensor& copy : copies.tensors)
      out_.bytes_read += static_cast<std::uint64_t>(copy.spec.size_bytes());
    for (const Pair& pair : pairs)
      if (sums[add(pair.tensor, pair.first)] != sums[add(pair.tensor, pair.second)])
        add_difference(pair);
  }

  void add_copy(Manifest& copies, const StoredTensor& tensor, std::uint32_t c) const {
    const Chunk chunk = manifest_.chunk(tensor, c);
    StoredTensor alone;
    alone.name = tensor.name;
    alone.spec = {tensor.stored_dtype(),
                  chunk.is_whole_box() ? chunk.box.shape : Shape{chunk.numel()}};
    alone.first_chunk = copies.chunks.size();
    alone.chunk_count = 1;
    copies.chunks.add(Chunk::whole_of(Box::whole(alone.spec.shape)), manifest_.source(tensor, c));
    copies.tensors.push_back(std::move(alone));
  }

  void add_difference(const Pair& pair) {
    const StoredTensor& tensor = manifest_.tensors[pair.tensor];
    const std::string first = file_of(manifest_, source(pair, pair.first));
    out_.findings.push_back(
        {Finding::kDifferentCopies, Severity::kError,
         fmt::format("two copies of chunk {} differ{}",
                     manifest_.chunk(tensor, pair.second).to_string(),
                     first.empty() ? "" : fmt::format("; the first is in {}", first)),
         file_of(manifest_, source(pair, pair.second)), tensor.name});
  }

  const Manifest& manifest_;
  const Directory& directory_;
  TransferOptions transfer_;
  CopyComparison out_;
};

}  // namespace

CopyComparison compare_copies(const OpenedCheckpoint& checkpoint,
                              std::span<const std::uint32_t> tensors, bool read_all,
                              const TransferOptions& transfer) {
  return CopyComparer(checkpoint, transfer).run(tensors, read_all);
}

}  // namespace tessera
