#include "lib/format/torch_save/meta_parts.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "lib/format/findings.h"
#include "lib/format/torch_files/archive_bytes.h"
#include "lib/format/torch_files/archive_manifest.h"
#include "lib/state/fields.h"

namespace tessera::torch_save {
namespace {

constexpr std::array<std::string_view, 6> kRows = {"wq", "wk", "wv", "w1", "w3", "output"};
constexpr std::array<std::string_view, 2> kColumns = {"wo", "w2"};
constexpr std::string_view kWidth = "norm.weight";  // one element for each of the model's features
constexpr std::string_view kParameters = "params.json";
constexpr std::uint64_t kMostParameterBytes = std::uint64_t{1} << 20;
constexpr int kWhole = -1;

/// The number in "consolidated.03.pth", which has one (is_meta_part()).
std::size_t number_of(std::string_view name) {
  name.remove_prefix(name.find('.') + 1);
  std::size_t number = 0;
  std::from_chars(name.data(), name.data() + name.size(), number);
  return number;
}

class MetaReader {
 public:
  MetaReader(const Place& place, const ReadOptions& options)
      : directory_(*place.directory),
        builder_(*place.directory, options),
        findings_(options.tolerate_damage, builder_.manifest().notes) {}

  Manifest read(const std::vector<std::string>& names) {
    open(names);
    const Value& first = root(first_);
    width_ = width_of(first);
    read_parameters();
    for (const auto& entry : first.as_dict()) {
      const std::string name = in_file(path(first_), [&] { return Field(entry.first).text(); });
      in_tensor(name, [&] {
        entry.second.is_tensor() ? add_tensor(name) : add_value(name, entry.second);
      });
    }
    return builder_.finish("torch-save",
                           fmt::format("Meta's weights, torch.save, {} model-parallel "
                                       "parts",
                                       files_.size()));
  }

 private:
  void open(const std::vector<std::string>& names) {
    files_.resize(std::max(names.size(), number_of(names.back()) + 1));
    if (files_.size() > 4 * names.size())
      fail(Code::kCorrupt, fmt::format("{} parts are here, the last is number {}", names.size(),
                                       files_.size() - 1));
    Status why;
    std::vector<bool> seen(files_.size());
    for (const std::string& name : names) {
      const std::size_t number = number_of(name);
      if (seen[number]) fail(Code::kCorrupt, fmt::format("two parts have the number {}", number));
      seen[number] = true;
      const auto file = builder_.try_open(name, why);
      if (!file)
        findings_.error(Finding::kUnreadableFile, unreadable_text("a part", why), name);
      else if (!builder_.archive(*file).root.is_dict())
        in_file(name, [] { fail(Code::kUnsupported, "its top object is no dict of weights"); });
      files_[number] = file;
    }
    for (std::size_t i = 0; i < files_.size(); ++i)
      if (!seen[i])
        findings_.error(Finding::kMissingFile,
                        fmt::format("part {} of {} is missing", i, files_.size()),
                        fmt::format("consolidated.{:02}.pth", i));
    const auto opened = std::ranges::find_if(files_, [](const auto& file) { return bool(file); });
    if (opened == files_.end()) throw Error(std::move(why));
    first_ = static_cast<std::size_t>(opened - files_.begin());
  }

  const std::string& path(std::size_t part) {
    return builder_.manifest().files[*files_[part]].path;
  }
  const Value& root(std::size_t part) const { return builder_.archive(*files_[part]).root; }
  const ArchiveTensor* tensor_in(std::size_t part, const std::string& name) const {
    const Value* value = root(part).find(name);
    return value && value->is_tensor()
               ? &builder_.archive(*files_[part]).tensors.at(value->tensor_index())
               : nullptr;
  }
  std::optional<std::int64_t> width_of(const Value& root) const {
    const Value* norm = root.find(kWidth);
    if (!norm || !norm->is_tensor()) return std::nullopt;
    const Shape& shape = tensor_in(first_, std::string(kWidth))->shape;
    return shape.rank() == 1 ? std::optional(shape[0]) : std::nullopt;
  }

  int dim_of(const std::string& name, const Shape& shape) const {
    const auto words = split(name, '.');
    const std::string_view owner = words.size() > 1 ? words[words.size() - 2] : std::string_view();
    if (std::ranges::find(kRows, owner) != kRows.end() && shape.rank() >= 1) return 0;
    if (std::ranges::find(kColumns, owner) != kColumns.end()) return shape.rank() == 2 ? 1 : kWhole;
    if (owner == "tok_embeddings" && shape.rank() == 2 && width_)
      return shape[1] == *width_ ? 0 : 1;
    if (same_everywhere(name)) return kWhole;
    fail(Code::kUnsupported,
         "the model-parallel parts differ in it, and its name does not say how it is cut",
         "join the parts with the model's own conversion script, and read what it writes");
  }
  bool same_everywhere(const std::string& name) const {
    const Value* mine = root(first_).find(name);
    for (std::size_t part = 0; part < files_.size(); ++part) {
      if (!files_[part] || part == first_) continue;
      const Value* other = root(part).find(name);
      if (!other || !other->is_tensor() ||
          !known_equal(builder_.archive(*files_[first_]), mine->tensor_index(),
                       builder_.archive(*files_[part]), other->tensor_index())
               .value_or(false))
        return false;
    }
    return true;
  }

  void add_tensor(const std::string& name) {
    const ArchiveTensor& first = *tensor_in(first_, name);
    const int dim = dim_of(name, first.shape);
    TensorSpec whole{first.dtype, first.shape};
    if (dim >= 0) {
      const auto extent = checked_mul(first.shape[dim], static_cast<std::int64_t>(files_.size()));
      if (!extent) fail(Code::kCorrupt, "its parts have more than 2^63 rows");
      whole.shape[dim] = *extent;
    }
    check_width(whole.shape, name, dim);
    std::vector<ArchivePiece> pieces;
    for (std::size_t part = 0; part < files_.size(); ++part) {
      if (!files_[part] || (dim < 0 && part != first_)) continue;
      const ArchiveTensor* own = tensor_in(part, name);
      if (!own || own->shape != first.shape || own->dtype != first.dtype)
        in_file(path(part), [&] {
          fail(Code::kCorrupt,
               own ? fmt::format("{} {} here, {} {} in {}", torch_name(own->dtype),
                                 own->shape.to_string(), torch_name(first.dtype),
                                 first.shape.to_string(), path(first_))
                   : fmt::format("it lacks the tensor, which {} has", path(first_)));
        });
      Box box = Box::whole(first.shape);
      if (dim >= 0)
        box.origin[static_cast<std::size_t>(dim)] =
            static_cast<std::int64_t>(part) * first.shape[dim];
      pieces.push_back({Chunk::whole_of(std::move(box)), *files_[part],
                        root(part).find(name)->tensor_index(), 0});
    }
    builder_.add_tensor({key_item(name)}, whole, pieces);
  }
  /// The heads' queries have as many rows as the model's width, or what params.json says: fewer are
  /// those of parts that are not here.
  void check_width(const Shape& whole, const std::string& name, int dim) {
    const auto rows = query_rows_ ? query_rows_ : width_;
    if (dim != 0 || !rows || whole.rank() != 2 || !name.ends_with("attention.wq.weight")) return;
    if (whole[0] >= *rows) return;
    findings_.error(Finding::kMissingFile,
                    fmt::format("{} parts hold {} of {} rows: others are missing", files_.size(),
                                whole[0], *rows),
                    fmt::format("consolidated.{:02}.pth", files_.size()), name);
  }
  void read_parameters() {
    const std::string name(kParameters);
    const auto info = directory_.stat(name);
    if (!info || info->type != FileType::kRegular || info->size_bytes > kMostParameterBytes) return;
    in_file(name, [&] {
      Bytes text(info->size_bytes);
      directory_.open(name)->read_at(0, text);
      const Value root = parse_json(text);
      const auto heads = integer_in(root, "n_heads"), size = integer_in(root, "head_dim");
      if (heads && size) query_rows_ = checked_mul(*heads, *size);
    });
  }

  void add_value(const std::string& name, const Value& value) {
    builder_.add_value(*files_[first_], {key_item(name)}, value);
  }

  const Directory& directory_;
  ArchiveManifestBuilder builder_;
  Findings findings_;
  std::vector<std::optional<std::uint32_t>> files_;  // by part; nullopt: missing or unreadable
  std::size_t first_ = 0;                            // the first that is there
  std::optional<std::int64_t> width_;
  std::optional<std::int64_t> query_rows_;  // heads times their size, where params.json has both
};

}  // namespace

Manifest read_meta_parts(const Place& place, const ReadOptions& options,
                         const std::vector<std::string>& parts) {
  return MetaReader(place, options).read(parts);
}

}  // namespace tessera::torch_save
