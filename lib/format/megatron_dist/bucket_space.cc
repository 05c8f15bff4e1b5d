#include "lib/format/megatron_dist/bucket_space.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "lib/format/megatron_torch/model_names.h"
#include "lib/format/megatron_torch/tp_rule.h"
#include "lib/format/torch_dcp/regrouped_chunk.h"

namespace tessera::megatron_dist {
namespace {

constexpr std::string_view kSpace = "optimizer.distributed.dp_group_idx_";
constexpr std::int64_t kAlignment = 64;  // elements, of a parameter's start
constexpr std::size_t kMostParameters = std::size_t{1} << 22;

/// A bucket tensor's name, cut.
struct BucketName {
  std::string group;  // "", or "chained_1.", and the number of the group
  std::int64_t buffer = 0, bucket = 0;
  std::string dtype;  // of the weights: "bfloat16"
  std::string leaf;
};

std::optional<std::int64_t> number_between(std::string_view text, std::size_t begin,
                                           std::size_t end) {
  std::int64_t value = 0;
  const auto [last, error] = std::from_chars(text.data() + begin, text.data() + end, value);
  return error == std::errc() && last == text.data() + end && value >= 0 ? std::optional(value)
                                                                         : std::nullopt;
}

std::optional<BucketName> parse(std::string_view name) {
  constexpr std::string_view kBuffer = ".gbuf_idx_", kDtype = ".dtype_", kBucket = ".bucket_idx_";
  const std::size_t buffer = name.find(kBuffer), dtype = name.find(kDtype),
                    bucket = name.rfind(kBucket), dot = name.rfind('.');
  if (!is_bucket(name) || buffer == name.npos || dtype == name.npos || bucket == name.npos ||
      buffer > dtype || dtype + kDtype.size() > bucket || dot < bucket + kBucket.size())
    return std::nullopt;
  const auto g = number_between(name, buffer + kBuffer.size(), dtype);
  const auto b = number_between(name, bucket + kBucket.size(), dot);
  if (!g || !b) return std::nullopt;
  BucketName out{
      std::string(name.substr(0, buffer)), *g, *b, {}, std::string(name.substr(dot + 1))};
  std::string_view types = name.substr(dtype + kDtype.size(), bucket - dtype - kDtype.size());
  if (types.starts_with('(')) types.remove_prefix(1);
  types = types.substr(0, types.find_first_of(",)"));
  if (types.starts_with("torch.")) types.remove_prefix(6);
  out.dtype = types;
  return out;
}

/// A parameter of the model: a tensor, or one layer of a stack.
struct Parameter {
  std::uint32_t tensor = 0;
  Box box;
};

/// Where a parameter lies: in which bucket, and from which element on.
struct Placed {
  std::size_t parameter = 0;
  std::size_t bucket = 0;
  std::int64_t begin = 0;
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
      const auto name = parse(tensor.name);
      if (!name || tensor.spec.shape.rank() != 1) {
        out.missing = fmt::format("\"{}\" is no name of a bucket that is known here", tensor.name);
        continue;
      }
      buffers_[{name->buffer, name->dtype}][name->leaf][name->bucket] = t;
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

  /// Finds every parameter's place; says what is missing, or "".
  std::string plan() {
    if (const std::size_t groups = bucket_groups(manifest_).size(); groups > 1)
      return fmt::format(
          "they are of {} model-parallel groups, and which part of which parameter each of them "
          "holds, and in which order, is not stored (the model's param_index_map)",
          groups);
    if (const std::string why = find_parameters(); !why.empty()) return why;
    std::set<std::string> seen;
    for (const auto& [key, leaves] : buffers_) {
      if (!seen.insert(key.second).second)
        return fmt::format(
            "several buffers hold parameters of {}, and which of them holds which is not stored "
            "(the model's param_index_map)",
            key.second);
      if (const std::string why = place(key, leaves); !why.empty()) return why;
    }
    return {};
  }

  /// The model's parameters as one rank registered them: layers one by one.
  std::string find_parameters() {
    std::vector<std::uint32_t> stack;
    std::string prefix;
    std::set<std::string> writers;
    const auto flush = [&] {
      const std::int64_t depth = stack.empty() ? 0 : manifest_.tensors[stack[0]].spec.shape[0];
      for (std::int64_t layer = 0; layer < depth; ++layer)
        for (const std::uint32_t t : stack) {
          Box box = Box::whole(manifest_.tensors[t].spec.shape);
          box.origin[0] = layer;
          box.shape[0] = 1;
          parameters_.push_back({t, std::move(box)});
        }
      stack.clear();
    };
    for (std::uint32_t t = 0; t < manifest_.tensors.size(); ++t) {
      const StoredTensor& tensor = manifest_.tensors[t];
      if (tensor.embedded || is_optimizer(tensor.name) || !is_floating(tensor.spec.dtype) ||
          tensor.name.ends_with("_extra_state"))
        continue;
      if (megatron_torch::is_expert(tensor.name))
        return "the model has experts, whose order in the buckets is not stored (the model's "
               "param_index_map)";
      for (std::size_t c = 0; c < tensor.chunk_count; ++c)
        writers.insert(writer_of(manifest_.files[manifest_.source(tensor, c).file].path));
      if (!megatron_torch::is_layer_stack(tensor.name) || tensor.spec.shape.rank() == 0) {
        flush();
        parameters_.push_back({t, Box::whole(tensor.spec.shape)});
        continue;
      }
      const std::string here = tensor.name.substr(0, tensor.name.find("layers."));
      const bool same = !stack.empty() && here == prefix &&
                        manifest_.tensors[stack[0]].spec.shape[0] == tensor.spec.shape[0];
      if (!same) flush();
      prefix = here;
      stack.push_back(t);
      const auto most = checked_mul(tensor.spec.shape[0], static_cast<std::int64_t>(stack.size()));
      if (!most || *most > static_cast<std::int64_t>(kMostParameters))
        return fmt::format("\"{}\" has {} layers", tensor.name, tensor.spec.shape[0]);
    }
    flush();
    if (writers.size() > 1)
      return fmt::format(
          "{} ranks wrote parts of the model (a fully parallel save), so that no rank's list has "
          "its parameters in order (the model's param_index_map)",
          writers.size());
    return {};
  }

  static bool is_optimizer(std::string_view name) {
    return name.starts_with("optimizer.") || name.starts_with("chained_");
  }
  /// "__0_1.distcp": rank 0, its second file.
  static std::string writer_of(const std::string& path) {
    return path.substr(0, path.find_last_of('_'));
  }

  std::string place(const BufferKey& key, const Leaves& leaves) {
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
    std::vector<Placed>& placed = placed_[key];
    std::int64_t bucket = 0, end = 0;
    for (std::size_t i = parameters_.size(); i-- > 0;) {
      const StoredTensor& tensor = manifest_.tensors[parameters_[i].tensor];
      if (torch_name(tensor.spec.dtype) != key.second) continue;
      if (bucket < static_cast<std::int64_t>(first.size()) && end == size_of(first.at(bucket))) {
        ++bucket;
        end = 0;
      }
      const std::int64_t begin = ceil_div(end, kAlignment) * kAlignment;
      const std::int64_t size = parameters_[i].box.shape.numel();
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
      placed.push_back({i, static_cast<std::size_t>(bucket), begin});
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
    for (const auto& [key, leaves] : buffers_)
      for (const auto& [leaf, buckets] : leaves) add_leaf(leaf, buckets, placed_.at(key));
    keep.resize(manifest_.state.entries.size(), true);
    keep_entries(manifest_, keep);
  }

  void add_leaf(const std::string& leaf, const Buckets& buckets,
                const std::vector<Placed>& placed) {
    std::map<std::uint32_t, std::vector<std::pair<Chunk, Source>>> made;  // by the model's tensor
    for (const Placed& place : placed) {
      const Parameter& parameter = parameters_[place.parameter];
      const StoredTensor& bucket =
          manifest_.tensors[buckets.at(static_cast<std::int64_t>(place.bucket))];
      const std::int64_t end = place.begin + parameter.box.shape.numel();
      for (std::size_t c = 0; c < bucket.chunk_count; ++c) {
        const Box piece = manifest_.chunk(bucket, c).box;
        if (piece.begin(0) < place.begin || piece.end(0) > end || piece.shape[0] == 0) continue;
        Chunk chunk = Chunk::whole_of(parameter.box);
        chunk.flat_begin = piece.begin(0) - place.begin;
        chunk.flat_end = piece.end(0) - place.begin;
        Source source = manifest_.source(bucket, c);
        source.view = dcp::kFlatItem;
        made[parameter.tensor].emplace_back(chunk, source);
      }
    }
    const StoredTensor like = manifest_.tensors[buckets.begin()->second];
    for (const auto& [t, chunks] : made) {
      StoredTensor tensor;
      tensor.name = fmt::format("optimizer.state.{}.{}", leaf, manifest_.tensors[t].name);
      tensor.spec = {like.spec.dtype, manifest_.tensors[t].spec.shape};
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
  std::map<BufferKey, Leaves> buffers_;
  std::vector<Parameter> parameters_;
  std::map<BufferKey, std::vector<Placed>> placed_;
  std::map<std::uint32_t, std::set<std::int64_t>> borders_;
};

}  // namespace

bool is_bucket(std::string_view tensor) {
  return tensor.find(kSpace) != tensor.npos && tensor.find(".bucket_idx_") != tensor.npos;
}

std::set<std::string> bucket_groups(const Manifest& manifest) {
  std::set<std::string> groups;
  for (const StoredTensor& tensor : manifest.tensors)
    if (const auto name = parse(tensor.name); name && !tensor.embedded)
      groups.insert(name->group.substr(name->group.find(kSpace)));
  return groups;
}

BucketDecoding decode_buckets(Manifest& manifest) { return Decoder(manifest).run(); }

}  // namespace tessera::megatron_dist
