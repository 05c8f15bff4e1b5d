#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/show.h>
#include <tessera/state/aliases.h>
#include <tessera/state/listed_tensors.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <set>

#include "lib/ops/inspect/element_text.h"
#include "lib/ops/inspect/listing.h"
#include "lib/ops/inspect/npy.h"
#include "lib/ops/open/dequantize.h"

namespace tessera {
namespace {

constexpr std::int64_t kMostShown = 1'000'000;  // elements formatted as text

std::optional<std::int64_t> integer(std::string_view text, std::string_view all) {
  if (text.empty()) return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    fail(Code::kInvalidArgument,
         fmt::format("--slice \"{}\": \"{}\" is no integer", printable(all), printable(text)),
         "write it like 0:4,:8");
  return value;
}

/// One dim: what of it is taken.
struct Taken {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool is_index = false;
};

Taken take(const SliceRange& range, std::int64_t extent, int dim) {
  const auto from_end = [extent](std::int64_t i) { return i < 0 ? i + extent : i; };
  if (range.is_index) {
    const std::int64_t at = from_end(*range.begin);
    if (at < 0 || at >= extent)
      fail(Code::kOutOfRange, fmt::format("index {} is outside of dim {} with {} elements",
                                          *range.begin, dim, extent));
    return {at, at + 1, true};
  }
  const std::int64_t begin = std::clamp<std::int64_t>(from_end(range.begin.value_or(0)), 0, extent);
  const std::int64_t end =
      std::clamp<std::int64_t>(range.end ? from_end(*range.end) : extent, begin, extent);
  return {begin, end, false};
}

std::vector<Taken> take_all(const std::optional<std::vector<SliceRange>>& slice,
                            const Shape& shape) {
  std::vector<Taken> taken;
  for (int d = 0; d < shape.rank(); ++d) taken.push_back({0, shape[d], false});
  if (!slice) return taken;
  if (static_cast<int>(slice->size()) > shape.rank())
    fail(Code::kInvalidArgument,
         fmt::format("the slice has {} dims, the tensor {}", slice->size(), shape.rank()));
  for (std::size_t d = 0; d < slice->size(); ++d)
    taken[d] = take((*slice)[d], shape[static_cast<int>(d)], static_cast<int>(d));
  return taken;
}

class TensorShow {
 public:
  TensorShow(OpenedCheckpoint& checkpoint, std::uint32_t index, const ShowOptions& options,
             ShowReport& report)
      : checkpoint_(checkpoint),
        index_(index),
        tensor_(checkpoint.manifest.tensors[index]),
        options_(options),
        report_(report) {}

  void run() {
    report_.tensor = describe_tensor(checkpoint_.manifest, index_);
    if (options_.facts) facts();
    const std::vector<Taken> taken = take_all(options_.slice, tensor_.spec.shape);
    for (const Taken& t : taken) {
      report_.slice_origin.push_back(t.begin);
      if (!t.is_index) report_.slice_shape.push_back(t.end - t.begin);
    }
    if (!options_.values && !options_.npy) return;
    checkpoint_.locate(std::span(&index_, 1), read_options(options_.transfer));
    if (options_.npy) check_size(taken);
    if (options_.npy)
      report_.npy = make_npy(tensor_.spec.dtype, report_.slice_shape, gather(ranges(taken)),
                             report_.npy_note);
    if (options_.values) show_values(taken);
  }

 private:
  void facts() {
    const Manifest& manifest = checkpoint_.manifest;
    if (tensor_.quant >= 0) {
      const QuantParams& quant = manifest.quant[static_cast<std::size_t>(tensor_.quant)];
      report_.facts.emplace_back("quantization", quant.scheme);
      if (quant.scales.is_none())
        report_.facts.emplace_back("scale, zero point",
                                   fmt::format("{:g}, {}", quant.scale, quant.zero_point));
    }
    if (tensor_.is_parameter) report_.facts.emplace_back("pickled as", "torch.nn.Parameter");
    if (tensor_.requires_grad) report_.facts.emplace_back("requires_grad", "true");
    std::set<std::uint32_t> records;
    for (std::uint32_t c = 0; c < tensor_.chunk_count; ++c)
      if (const std::uint32_t record = manifest.source(tensor_, c).record) records.insert(record);
    std::string shared;
    for (std::uint32_t other : listed_tensors(manifest)) {
      if (other == index_) continue;
      const StoredTensor& t = manifest.tensors[other];
      for (std::uint32_t c = 0; c < t.chunk_count; ++c)
        if (records.contains(manifest.source(t, c).record)) {
          shared += (shared.empty() ? "" : ", ") + t.name;
          break;
        }
    }
    if (!shared.empty()) report_.facts.emplace_back("storage shared with", shared);
    std::string tied;
    for (const auto& [name, kept] : recorded_aliases(manifest))
      if (kept == tensor_.name) tied += (tied.empty() ? "" : ", ") + name;
    if (!tied.empty()) report_.facts.emplace_back("also named", tied + ", stored once");
  }

  /// A .npy is made in memory.
  void check_size(const std::vector<Taken>& taken) const {
    std::uint64_t bytes = static_cast<std::uint64_t>(bits(tensor_.spec.dtype) + 7) / 8;
    for (const Taken& t : taken) bytes *= static_cast<std::uint64_t>(t.end - t.begin);
    if (bytes > options_.transfer.memory_limit_bytes)
      fail(Code::kResourceExhausted,
           fmt::format("the slice holds {}, more than the memory limit", format_bytes(bytes)),
           "take a smaller --slice, or raise --mem-limit");
  }

  static std::vector<std::vector<std::int64_t>> ranges(const std::vector<Taken>& taken) {
    std::vector<std::vector<std::int64_t>> indices;
    for (const Taken& t : taken) {
      std::vector<std::int64_t> dim(static_cast<std::size_t>(t.end - t.begin));
      std::iota(dim.begin(), dim.end(), t.begin);
      indices.push_back(std::move(dim));
    }
    return indices;
  }

  /// Without a slice only the corners are read: a huge tensor shows at once.
  void show_values(const std::vector<Taken>& taken) {
    std::vector<std::vector<std::int64_t>> indices;
    for (const Taken& t : taken) {
      std::vector<std::int64_t> dim;
      const std::int64_t edge = options_.edge_items;
      const bool whole = options_.slice || t.end - t.begin <= 2 * edge;
      for (std::int64_t i = t.begin; i < t.end; ++i) {
        if (!whole && i == t.begin + edge) i = t.end - edge;
        dim.push_back(i);
      }
      report_.elided |= !whole;
      indices.push_back(std::move(dim));
    }
    std::int64_t count = 1;
    for (const auto& dim : indices) count *= static_cast<std::int64_t>(dim.size());
    if (count > kMostShown)
      fail(Code::kInvalidArgument,
           fmt::format("the slice holds {} elements; at most {} are printed", count, kMostShown),
           "take a smaller --slice, or write it with --npy FILE");
    report_.shown = indices;
    const Bytes bytes = gather(indices);
    report_.element_text_is_number = has_number_text(tensor_.spec.dtype);
    report_.values = element_texts(tensor_.spec.dtype, bytes, count);
  }

  /// The elements at the product of `indices`, dense: runs of consecutive last indices are one
  /// read.
  Bytes gather(const std::vector<std::vector<std::int64_t>>& indices) {
    const TensorReader reader(checkpoint_.manifest, *checkpoint_.directory,
                              looking(options_.transfer));
    TensorReader::Reading reading(reader, {&index_, 1});
    const Shape& shape = tensor_.spec.shape;
    if (is_sub_byte(tensor_.spec.dtype)) {
      Bytes all(static_cast<std::size_t>(tensor_.spec.size_bytes()));
      reading.read(index_, 0, shape.numel(), all);
      if (options_.slice)
        fail(Code::kUnsupported,
             fmt::format("{} elements share bytes: only the whole tensor can be shown",
                         torch_name(tensor_.spec.dtype)));
      return all;
    }
    const auto width = static_cast<std::size_t>(element_bytes(tensor_.spec.dtype));
    Bytes out;
    std::vector<std::size_t> at(indices.size());
    for (const auto& dim : indices)
      if (dim.empty()) return out;
    while (true) {
      std::int64_t first = 0;
      for (std::size_t d = 0; d < at.size(); ++d)
        first += indices[d][at[d]] * shape.inner_numel(static_cast<int>(d));
      std::size_t run = 1;
      if (!at.empty())
        while (at.back() + run < indices.back().size() &&
               indices.back()[at.back() + run] ==
                   indices.back()[at.back()] + static_cast<std::int64_t>(run))
          ++run;
      const std::size_t begin = out.size();
      out.resize(begin + run * width);
      reading.read(index_, first, first + static_cast<std::int64_t>(run),
                   MutableBytes(out).subspan(begin));
      if (!advance(at, indices, run)) return out;
    }
  }

  static bool advance(std::vector<std::size_t>& at,
                      const std::vector<std::vector<std::int64_t>>& indices, std::size_t run) {
    if (at.empty()) return false;
    at.back() += run;
    for (std::size_t d = at.size(); d-- > 0;) {
      if (at[d] < indices[d].size()) return true;
      at[d] = 0;
      if (d > 0) ++at[d - 1];
    }
    return false;
  }

  OpenedCheckpoint& checkpoint_;
  std::uint32_t index_;
  const StoredTensor& tensor_;
  const ShowOptions& options_;
  ShowReport& report_;
};

/// The part of `value` (JSON form) at "a.b.0" below it; nullopt when there is none.
std::optional<Value> descend(const Value& value, std::string_view path) {
  if (path.empty()) return value;
  if (value.is_dict()) {
    // A key may hold dots: the longest match wins.
    for (std::size_t end = path.size();; end = path.rfind('.', end - 1)) {
      if (const Value* next = value.find(path.substr(0, end)))
        if (auto found = descend(*next, end == path.size() ? "" : path.substr(end + 1)))
          return found;
      if (end == 0 || path.rfind('.', end - 1) == std::string_view::npos) return std::nullopt;
    }
  }
  if (value.kind() != Value::Kind::kList) return std::nullopt;
  const std::string_view head = path.substr(0, path.find('.'));
  std::size_t index = 0;
  const auto [last, error] = std::from_chars(head.data(), head.data() + head.size(), index);
  if (error != std::errc() || last != head.data() + head.size() || index >= value.as_list().size())
    return std::nullopt;
  return descend(value.as_list()[index],
                 head.size() == path.size() ? "" : path.substr(head.size() + 1));
}

/// Names directly below `prefix` (with its dot): "layers." -> "0", "1".
std::vector<std::string> names_below(const Manifest& manifest, const std::string& prefix) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const StateEntry& entry : manifest.state.entries) {
    if (!entry.name.starts_with(prefix)) continue;
    const std::string rest = entry.name.substr(prefix.size());
    const std::string head = rest.substr(0, rest.find('.'));
    if (seen.insert(head).second) names.push_back(head);
  }
  return names;
}

bool show_value(OpenedCheckpoint& checkpoint, const std::string& name, ShowReport& report) {
  report.what = ShowReport::What::kValue;
  for (const auto& [key, value] : json_values(checkpoint)) {
    if (key != name && !(name.starts_with(key) && name[key.size()] == '.')) continue;
    auto part = descend(value, key == name ? "" : std::string_view(name).substr(key.size() + 1));
    if (!part) continue;
    report.value = std::move(*part);
    if (report.value.is_dict())
      for (const auto& [child, inner] : report.value.as_dict())
        report.children.push_back(child.as_string());
    return true;
  }
  return false;
}

}  // namespace

std::vector<SliceRange> parse_slice(std::string_view text) {
  std::vector<SliceRange> ranges;
  for (std::string_view part : split(text, ',')) {
    const std::vector<std::string_view> ends = split(part, ':');
    SliceRange range;
    if (ends.size() == 1) {
      range.is_index = true;
      range.begin = integer(part, text);
      if (!range.begin)
        fail(Code::kInvalidArgument,
             fmt::format("--slice \"{}\": an index is missing", printable(text)),
             "write it like 0:4,:8");
    } else {
      if (ends.size() > 3 || (ends.size() == 3 && integer(ends[2], text).value_or(1) != 1))
        fail(Code::kInvalidArgument,
             fmt::format("--slice \"{}\": only steps of 1 are taken", printable(text)));
      range.begin = integer(ends[0], text);
      range.end = integer(ends[1], text);
    }
    ranges.push_back(range);
  }
  return ranges;
}

namespace {

/// "model.model.layers" for "model.layers": what lies deeper than was thought.
std::string folder_called(const std::string& name, const std::vector<std::string_view>& names) {
  const std::string inner = "." + name + ".";
  for (const std::string_view each : names)
    if (const std::size_t at = each.find(inner); inner.size() > 2 && at != each.npos)
      return std::string(each.substr(0, at + inner.size() - 1));
  return {};
}

ShowReport find_and_show(OpenedCheckpoint& checkpoint, const std::string& name,
                         const ShowOptions& options) {
  ShowReport report;
  report.path = checkpoint.path;
  report.format = checkpoint.manifest.format;
  report.name = name;
  const std::string stored = alias_target(checkpoint.manifest, name).value_or(name);
  for (std::uint32_t index : listed_tensors(checkpoint.manifest)) {
    if (checkpoint.manifest.tensors[index].name != stored) continue;
    in_tensor(name, [&] { TensorShow(checkpoint, index, options, report).run(); });
    return report;
  }
  if (show_value(checkpoint, name, report)) return report;
  const std::string prefix = name.empty() || name.ends_with('.') ? name : name + ".";
  report.children = names_below(checkpoint.manifest, prefix);
  if (report.children.empty()) {
    std::vector<std::string_view> names;
    for (const StateEntry& entry : checkpoint.manifest.state.entries) names.push_back(entry.name);
    std::string near = nearest(name, names);
    if (near.empty()) near = folder_called(name, names);
    fail(Code::kInvalidArgument, fmt::format("nothing here is called \"{}\"", printable(name)),
         near.empty() ? "ckpt-inspect ls shows the names"
                      : fmt::format("did you mean \"{}\"?", printable(near)));
  }
  ValueDict below;
  for (const auto& [key, value] : json_values(checkpoint))
    if (key.starts_with(prefix))
      below.emplace_back(Value::string(key.substr(prefix.size())), value);
  report.value = Value::dict(std::move(below));
  return report;
}

}  // namespace

ShowReport show(OpenedCheckpoint& checkpoint, const std::string& name, const ShowOptions& options) {
  if (options.dequantized) view_dequantized(checkpoint, options.transfer);
  ShowReport report = find_and_show(checkpoint, name, options);
  checkpoint.check_archives();
  return report;
}

}  // namespace tessera
