#include "lib/format/megatron_dist/bucket_space.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "lib/format/megatron_dist/group_model.h"
#include "lib/format/megatron_torch/bucket_names.h"
#include "lib/format/torch_dcp/regrouped_chunk.h"

namespace tessera::megatron_dist {

using namespace megatron_torch;

namespace {

constexpr std::int64_t kAlignment = 64;  // elements, of a parameter's start

/// Where a parameter lies: in which bucket, and from which element on.
struct Placed {
  const RankParameter* parameter = nullptr;
  std::size_t bucket = 0;
  std::int64_t begin = 0;
  bool same_place(const Placed& other) const {
    return parameter->tensor == other.parameter->tensor &&
           parameter->boxes == other.parameter->boxes && bucket == other.bucket &&
           begin == other.begin;
  }
};

class Decoder {
 public:
  explicit Decoder(Manifest& manifest) : manifest_(manifest) {}

  BucketDecoding run() {
    BucketDecoding out;
    for (std::uint32_t t = 0; t < manifest_.tensors.size(); ++t) {
      const StoredTensor& tensor = manifest_.tensors[t];
      if (tensor.embedded || !is_bucket(tensor.name)) continue;
      ++out.buckets;
      const auto name = parse_bucket_name(tensor.name);
      if (!name || tensor.spec.shape.rank() != 1) {
        out.missing = fmt::format("\"{}\" is no name of a bucket that is known here", tensor.name);
        continue;
      }
      const auto group = static_cast<std::size_t>(name->group_index);
      buffers_[group][{name->buffer, name->dtype}][name->leaf][name->bucket] = t;
      if (!add_writers(tensor, group) && out.missing.empty())
        out.missing = fmt::format(
            "they are of {} model-parallel groups, and one rank wrote buckets of several of them: "
            "whose weights it holds is not stored",
            bucket_groups(manifest_).size());
    }
    if (out.buckets == 0 || !out.missing.empty()) return out;
    out.missing = plan();
    if (out.missing.empty()) rewrite();
    return out;
  }

 private:
  using Buckets = std::map<std::int64_t, std::uint32_t>;   // by number -> tensor
  using Leaves = std::map<std::string, Buckets>;           // by leaf
  using BufferKey = std::pair<std::int64_t, std::string>;  // number, type of the weights
  using Places = std::map<BufferKey, std::vector<Placed>>;

  bool add_writers(const StoredTensor& tensor, std::size_t group) {
    bool one = true;
    for (std::size_t c = 0; c < tensor.chunk_count; ++c) {
      const Source& source = manifest_.source(tensor, c);
      const std::string& path = manifest_.files[source.file].path;
      plain_ = plain_ && source.side == 0 &&
               manifest_.chunk(tensor, c).box.shape[0] <= std::numeric_limits<std::uint32_t>::max();
      one = groups_.try_emplace(writer_of(path), group).first->second == group && one;
    }
    return one;
  }

  /// Finds every parameter's place; says what is missing, or "".
  std::string plan() {
    if (!plain_) return "their items are encoded, or have more than 2^32 elements";
    const std::size_t count = bucket_groups(manifest_).size();
    if (buffers_.size() != count || buffers_.rbegin()->first + 1 != count)
      return fmt::format(
          "they are of {} model-parallel groups, the highest of which has the number {}: buckets "
          "are missing, or experts have groups of their own",
          count, buffers_.rbegin()->first);
    if (std::string why = find_group_models(manifest_, groups_, count, models_); !why.empty())
      return why;
    for (const auto& [group, buffers] : buffers_)
      if (std::string why = place_group(group, buffers); !why.empty()) return why;
    return {};
  }

  /// Tries every order that the group's parameters may have.
  std::string place_group(std::size_t group, const std::map<BufferKey, Leaves>& buffers) {
    std::string first_why;
    std::optional<Places> found;
    for (const std::vector<RankParameter>& order : models_[group].orders) {
      Places places;
      const std::string why = place_all(order, buffers, places);
      if (!why.empty()) {
        if (first_why.empty()) first_why = why;
        continue;
      }
      if (found && !same_places(*found, places))
        return fmt::format("several orders of the parameters fit the buckets of group {}", group);
      found = std::move(places);
    }
    if (!found) return first_why;
    placed_[group] = std::move(*found);
    return {};
  }

  static bool same_places(const Places& a, const Places& b) {
    return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
      return x.first == y.first &&
             std::ranges::equal(x.second, y.second,
                                [](const Placed& p, const Placed& q) { return p.same_place(q); });
    });
  }

  std::string place_all(const std::vector<RankParameter>& order,
                        const std::map<BufferKey, Leaves>& buffers, Places& places) {
    std::set<std::string> seen;
    for (const auto& [key, leaves] : buffers) {
      if (!seen.insert(key.second).second)
        return fmt::format(
            "several buffers hold parameters of {}, and which of them holds which is not stored "
            "(the model's param_index_map)",
            key.second);
      if (std::string why = place(order, key, leaves, places[key]); !why.empty()) return why;
    }
    return {};
  }

  std::string place(const std::vector<RankParameter>& order, const BufferKey& key,
                    const Leaves& leaves, std::vector<Placed>& placed) {
    const Buckets& first = leaves.begin()->second;
    for (const auto& [leaf, buckets] : leaves) {
      bool alike = buckets.size() == first.size();
      for (const auto& [number, t] : buckets)
        alike = alike && first.contains(number) && size_of(t) == size_of(first.at(number));
      if (!alike || buckets.rbegin()->first + 1 != static_cast<std::int64_t>(buckets.size()))
        return fmt::format(
            "buckets of {} of buffer {} are missing or of other sizes than those of {}", leaf,
            key.first, leaves.begin()->first);
    }
    std::int64_t bucket = 0, end = 0;
    for (std::size_t i = order.size(); i-- > 0;) {
      const StoredTensor& tensor = manifest_.tensors[order[i].tensor];
      if (torch_name(tensor.spec.dtype) != key.second) continue;
      std::int64_t begin = ceil_div(end, kAlignment) * kAlignment;
      // A bucket ends with its last parameter; before an embedding that two stages share, which
      // has a bucket of its own, where the next parameter would have begun.
      if (bucket < static_cast<std::int64_t>(first.size()) &&
          (end == size_of(first.at(bucket)) || begin == size_of(first.at(bucket)))) {
        ++bucket;
        begin = 0;
      }
      const std::int64_t size = order[i].numel;
      if (bucket == static_cast<std::int64_t>(first.size()) ||
          begin > size_of(first.at(bucket)) - size)
        return fmt::format(
            "bucket {} of buffer {} ends before \"{}\" does, as if the model's "
            "parameters stood in another order (its param_index_map is not stored)",
            bucket, key.first, tensor.name);
      end = begin + size;
      for (const auto& [leaf, buckets] : leaves)
        if (!has_borders(buckets.at(bucket), begin, end))
          return fmt::format(
              "no chunk of bucket {} of buffer {} begins and ends with \"{}\" (its "
              "param_index_map is not stored)",
              bucket, key.first, tensor.name);
      placed.push_back({&order[i], static_cast<std::size_t>(bucket), begin});
    }
    if (bucket + 1 == static_cast<std::int64_t>(first.size()) && end == size_of(first.at(bucket)))
      return {};
    return fmt::format(
        "buffer {} is larger than the model's parameters of {} (their "
        "param_index_map is not stored)",
        key.first, key.second);
  }

  std::int64_t size_of(std::uint32_t tensor) const {
    return manifest_.tensors[tensor].spec.shape[0];
  }

  /// Pieces of parameters and gaps are chunks of their own.
  bool has_borders(std::uint32_t t, std::int64_t begin, std::int64_t end) {
    auto& borders = borders_[t];
    const StoredTensor& tensor = manifest_.tensors[t];
    if (borders.empty())
      for (std::size_t c = 0; c < tensor.chunk_count; ++c) {
        const Chunk chunk = manifest_.chunk(tensor, c);
        borders.insert(chunk.box.begin(0));
        borders.insert(chunk.box.end(0));
      }
    return borders.contains(begin) && borders.contains(end);
  }

  void rewrite() {
    std::vector<bool> keep(manifest_.state.entries.size(), true);
    for (std::size_t i = 0; i < keep.size(); ++i) {
      const StateEntry& entry = manifest_.state.entries[i];
      keep[i] = !entry.value.is_tensor() ||
                !is_bucket(manifest_.tensors[entry.value.tensor_index()].name);
    }
    std::map<std::string, Made> made;
    std::map<std::string, DType> types;
    for (const auto& [group, buffers] : buffers_)
      for (const auto& [key, leaves] : buffers)
        for (const auto& [leaf, buckets] : leaves) {
          types.emplace(leaf, manifest_.tensors[buckets.begin()->second].spec.dtype);
          for (const Placed& place : placed_.at(group).at(key))
            if (place.parameter->counts)
              add_pieces(buckets.at(static_cast<std::int64_t>(place.bucket)), place, made[leaf]);
        }
    for (const auto& [leaf, tensors] : made) add_leaf(leaf, types.at(leaf), tensors);
    keep.resize(manifest_.state.entries.size(), true);
    keep_entries(manifest_, keep);
  }

  using Made = std::map<std::uint32_t, std::vector<std::pair<Chunk, Source>>>;  // by weight

  /// The chunks of a bucket that hold a parameter, in the parameter's own coordinates.
  void add_pieces(std::uint32_t number, const Placed& place, Made& made) const {
    const StoredTensor& bucket = manifest_.tensors[number];
    const std::int64_t end = place.begin + place.parameter->numel;
    for (std::size_t c = 0; c < bucket.chunk_count; ++c) {
      const Box piece = manifest_.chunk(bucket, c).box;
      if (piece.begin(0) < place.begin || piece.end(0) > end || piece.shape[0] == 0) continue;
      std::int64_t at = place.begin;  // where the box begins in the bucket
      for (const Box& box : place.parameter->boxes) {
        const std::int64_t from = std::max(piece.begin(0), at);
        const std::int64_t to = std::min(piece.end(0), at + box.numel());
        if (from < to) {
          Chunk chunk = Chunk::whole_of(box);
          chunk.flat_begin = from - at;
          chunk.flat_end = to - at;
          Source source = manifest_.source(bucket, c);
          source.view = dcp::kFlatItem;
          if (to - from < piece.shape[0]) {
            source.view = dcp::kFlatPart;
            source.side = static_cast<std::uint32_t>(from - piece.begin(0));
          }
          made[place.parameter->tensor].emplace_back(chunk, source);
        }
        at += box.numel();
      }
    }
  }

  void add_leaf(const std::string& leaf, DType dtype, const Made& made) {
    for (const auto& [t, chunks] : made) {
      StoredTensor tensor;
      tensor.name = fmt::format("optimizer.state.{}.{}", leaf, manifest_.tensors[t].name);
      tensor.spec = {dtype, manifest_.tensors[t].spec.shape};
      tensor.first_chunk = manifest_.chunks.size();
      tensor.chunk_count = static_cast<std::uint32_t>(chunks.size());
      for (const auto& [chunk, source] : chunks) manifest_.chunks.add(chunk, source);
      manifest_.state.entries.push_back(
          {tensor.name,
           {key_item(tensor.name)},
           Value::tensor(static_cast<std::uint32_t>(manifest_.tensors.size()))});
      manifest_.tensors.push_back(std::move(tensor));
    }
  }

  Manifest& manifest_;
  std::map<std::size_t, std::map<BufferKey, Leaves>> buffers_;  // by group
  std::map<std::string, std::size_t> groups_;                   // writer -> its group
  bool plain_ = true;  // Source::side identifies the parts of items
  std::vector<GroupModel> models_;
  std::map<std::size_t, Places> placed_;
  std::map<std::uint32_t, std::set<std::int64_t>> borders_;
};

}  // namespace

BucketDecoding decode_buckets(Manifest& manifest) { return Decoder(manifest).run(); }

}  // namespace tessera::megatron_dist
