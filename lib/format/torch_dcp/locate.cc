// Pending sources -> extents: every item of the wanted tensors is opened once, file by file in
// ascending offsets, a batch of items per thread at a time.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "lib/format/findings.h"
#include "lib/format/torch_dcp/item_blob.h"
#include "lib/format/torch_dcp/item_tensor.h"
#include "lib/format/torch_dcp/names.h"
#include "lib/format/torch_dcp/reader.h"
#include "lib/format/torch_dcp/regrouped_chunk.h"

namespace tessera::dcp {
namespace {

constexpr std::size_t kBatchItems = 256;     // items per task: runs of neighbours stay together
constexpr std::size_t kBatchesPerWave = 64;  // bounds what is held before it is joined

struct Pending {
  std::uint64_t chunk = 0;   // in Manifest::chunks
  std::uint32_t tensor = 0;  // in Manifest::tensors
};

struct Outcome {
  LocatedChunk located;
  std::optional<Status> damage;  // tolerated
  bool done = false;
};

class Locator {
 public:
  Locator(const Place& place, Manifest& manifest, const ReadOptions& options)
      : place_(place), manifest_(manifest), options_(options) {}

  void run(std::span<const std::uint32_t> tensors) {
    collect(tensors);
    std::vector<Item> items;
    items.reserve(pending_.size());
    for (const Pending& p : pending_) items.push_back(item_of(p));
    ends_ = run_ends(items);
    SideTables tables(manifest_);
    const std::size_t wave = kBatchItems * kBatchesPerWave;
    for (std::size_t begin = 0; begin < pending_.size(); begin += wave) {
      locate_wave(begin, std::min(wave, pending_.size() - begin), tables);
    }
  }

 private:
  Item item_of(const Pending& p) const {
    const Source& source = manifest_.chunks.source(p.chunk);
    const std::uint32_t codecs = source.view == kFlatPart ? 0 : source.side;
    return {source.file, codecs, source.offset, source.length};
  }

  /// Pending chunks of these tensors by file and offset. Files that are not there were reported.
  void collect(std::span<const std::uint32_t> tensors) {
    for (const std::uint32_t index : tensors) {
      const StoredTensor& tensor = manifest_.tensors[index];
      for (std::uint32_t i = 0; i < tensor.chunk_count; ++i) {
        const std::uint64_t chunk = tensor.first_chunk + i;
        if (manifest_.chunks.source(chunk).kind != Source::Kind::kPending) continue;
        if (!options_.wants(chunk)) continue;
        if (options_.tolerate_damage && !fits(manifest_.chunks.source(chunk))) continue;
        pending_.push_back({chunk, index});
      }
    }
    std::sort(pending_.begin(), pending_.end(), [&](const Pending& a, const Pending& b) {
      const Source& x = manifest_.chunks.source(a.chunk);
      const Source& y = manifest_.chunks.source(b.chunk);
      return std::tie(x.file, x.offset, a.chunk) < std::tie(y.file, y.offset, b.chunk);
    });
  }

  bool fits(const Source& source) const {
    const std::uint64_t size = manifest_.files[source.file].size_bytes;
    return source.offset <= size && source.length <= size - source.offset;
  }

  void locate_wave(std::size_t begin, std::size_t count, SideTables& tables) {
    std::vector<Outcome> outcomes(count);
    parallel_for((count + kBatchItems - 1) / kBatchItems, options_.threads,
                 [&](std::size_t batch, int) {
                   ItemReader reader(*place_.directory, manifest_, options_, &large_);
                   BlobCache blobs;
                   const std::size_t first = batch * kBatchItems;
                   for (std::size_t k = first; k < std::min(count, first + kBatchItems); ++k) {
                     outcomes[k] = locate(reader, blobs, begin + k);
                   }
                 });
    for (std::size_t k = 0; k < count; ++k) join(pending_[begin + k], outcomes[k], tables);
  }

  Outcome locate(ItemReader& reader, BlobCache& blobs, std::size_t k) const {
    const Pending& p = pending_[k];
    const StoredTensor& tensor = manifest_.tensors[p.tensor];
    Outcome outcome;
    try {
      in_file(manifest_.files[item_of(p).file].path, [&] {
        in_tensor(tensor.name, [&] { outcome.located = locate_item(reader, blobs, p, ends_[k]); });
      });
      outcome.done = true;
    } catch (const Error& error) {
      if (!tolerates(options_, error.code())) throw;
      outcome.damage = error.status();
    }
    return outcome;
  }

  LocatedChunk locate_item(ItemReader& reader, BlobCache& blobs, const Pending& p,
                           std::uint64_t run_end) const {
    const StoredTensor& tensor = manifest_.tensors[p.tensor];
    const Item item = item_of(p);
    const Chunk chunk = manifest_.chunks.chunk(p.chunk, tensor.spec.shape.rank());
    const Box& box = chunk.box;
    const std::uint16_t view = manifest_.chunks.source(p.chunk).view;
    const TensorSpec expected{tensor.stored_dtype(), item_shape(chunk, view)};
    require_room(item, expected);
    const OpenItem open = reader.open(item, run_end);
    if (view == kFlatPart) {
      return locate_flat_part(manifest_, item, open, expected.dtype,
                              manifest_.chunks.source(p.chunk).side, chunk.numel(),
                              options_.pickle_limit_bytes);
    }
    if (item.codecs == 0 && !looks_like_torch_archive(open.window) && blobs.is_blob(reader, item)) {
      return blobs.locate(reader, item, tensor.name, box.origin, expected);
    }
    return locate_archive_item(manifest_, item, open, expected, options_.pickle_limit_bytes);
  }

  void require_room(const Item& item, const TensorSpec& expected) const {
    const auto bytes = static_cast<std::uint64_t>(expected.size_bytes());
    if (item.codecs == 0 || bytes <= most_decoded_bytes(options_)) return;
    fail(Code::kResourceExhausted,
         fmt::format("decoding a compressed item takes {} bytes, there are {} for one", bytes,
                     most_decoded_bytes(options_)),
         "raise --mem-limit");
  }

  void join(const Pending& p, Outcome& outcome, SideTables& tables) {
    StoredTensor& tensor = manifest_.tensors[p.tensor];
    if (outcome.damage) {
      manifest_.notes.push_back({item_finding(*outcome.damage), Severity::kError,
                                 outcome.damage->message, outcome.damage->context.file,
                                 tensor.name});
    }
    if (!outcome.done) return;
    if (outcome.located.quant) {
      if (tensor.quant < 0) {
        tensor.quant = static_cast<std::int32_t>(manifest_.quant.size());
        manifest_.quant.push_back(*outcome.located.quant);
      } else {
        require_same_quantization(tensor, *outcome.located.quant);
      }
    }
    manifest_.chunks.source(p.chunk) = tables.join(std::move(outcome.located));
    if (tables.inline_bytes() > options_.memory_limit_bytes) {
      in_tensor(tensor.name, [&] {
        fail(Code::kResourceExhausted,
             "strided tensors in encoded items take more than the memory limit",
             "raise --mem-limit");
      });
    }
  }

  void require_same_quantization(const StoredTensor& tensor, const QuantParams& other) const {
    const QuantParams& first = manifest_.quant[static_cast<std::size_t>(tensor.quant)];
    if (first.scheme == other.scheme && first.scale == other.scale &&
        first.zero_point == other.zero_point) {
      return;
    }
    in_tensor(tensor.name,
              [&] { fail(Code::kUnsupported, "its chunks are quantized with different scales"); });
  }

  const Place& place_;
  Manifest& manifest_;
  const ReadOptions& options_;
  std::mutex large_;
  std::vector<Pending> pending_;
  std::vector<std::uint64_t> ends_;
};

}  // namespace

void locate_chunks(const Place& place, Manifest& manifest, std::span<const std::uint32_t> tensors,
                   const ReadOptions& options) {
  Locator(place, manifest, options).run(tensors);
}

}  // namespace tessera::dcp
