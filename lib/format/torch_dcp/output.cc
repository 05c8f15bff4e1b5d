#include "lib/format/torch_dcp/output.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/large_array.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "lib/format/dtype_refusal.h"
#include "lib/format/torch_dcp/losses.h"
#include "lib/format/torch_dcp/names.h"
#include "lib/format/torch_dcp/renderer.h"
#include "lib/format/torch_dcp/save_plan.h"
#include "lib/format/value_policy.h"

namespace tessera::dcp {
namespace {

void require_torch_dtype(const StoredTensor& tensor, std::string_view format) {
  const DType dtype = tensor.spec.dtype;
  if (!dtype_from_torch_name(torch_name(dtype)) || is_sub_byte(dtype)) refuse_dtype(tensor, format);
}

class OutputBuilder {
 public:
  OutputBuilder(const Manifest& source, const TargetRequest& request, const OutputOptions& options)
      : source_(source), request_(request), options_(options) {}

  OutputPlan build() {
    plan_.format = options_.format;
    if (request_.single_file) {
      fail(Code::kUnsupported,
           fmt::format("{} is a folder of files, the destination names one file", options_.format));
    }
    const std::vector<bool> keep = choose_entries();
    renderer_ = make_renderer(keep);
    note_losses(source_.state, plan_.notes);
    const SavePlan save = plan_save(source_, request_, keep, options_.placements);
    std::size_t next = 0;
    plan_.chunks.reserve(save.items.size(), 4 * save.items.size());
    reserve_large(plan_.segments, 3 * save.items.size() + 1);
    renderer_->reserve_items(save.items.size());
    for (std::int64_t rank = 0; rank < save.world_size; ++rank) {
      begin_file(data_file_name(rank));
      for (; next < save.items.size() && save.items[next].rank == rank; ++next) {
        add_item(save, save.items[next]);
      }
      end_file();
    }
    add_metadata();
    plan_.renderer = renderer_;
    return std::move(plan_);
  }

 private:
  std::vector<bool> choose_entries() {
    ValuePolicy policy(request_, {.opaque = true, .bytes_io = true}, options_.format, plan_.notes,
                       plan_.left_out);
    std::vector<bool> keep;
    for (std::size_t e = 0; e < source_.state.entries.size(); ++e) {
      const StateEntry& entry = source_.state.entries[e];
      const bool elsewhere = options_.elsewhere && options_.elsewhere(e);
      keep.push_back(!elsewhere && (entry.value.is_tensor() || policy.keeps(entry)));
    }
    return keep;
  }

  std::shared_ptr<DcpRenderer> make_renderer(const std::vector<bool>& keep) {
    std::vector<std::uint32_t> entries;
    std::map<std::uint32_t, OutputValue> values;
    entries.reserve(keep.size());
    number_.assign(keep.size(), 0);
    for (std::uint32_t e = 0; e < keep.size(); ++e) {
      if (!keep[e]) continue;
      number_[e] = static_cast<std::uint32_t>(entries.size());
      entries.push_back(e);
      const StateEntry& entry = source_.state.entries[e];
      in_tensor(entry.name, [&] {
        if (entry.value.is_tensor())
          require_storable(source_.tensors[entry.value.tensor_index()]);
        else
          values.emplace(number_[e], make_value(entry.value));
      });
    }
    return std::make_shared<DcpRenderer>(source_, std::move(entries), std::move(values));
  }

  OutputValue make_value(const Value& value) const {
    OutputValue made;
    std::vector<std::uint32_t> local(source_has_tensors_inside(value, made.embedded));
    for (std::uint32_t i = 0; i < made.embedded.size(); ++i) {
      const StoredTensor& tensor = source_.tensors[made.embedded[i]];
      require_torch_dtype(tensor, options_.format);
      if (tensor.quant >= 0) {
        fail(Code::kUnsupported,
             fmt::format("a quantized tensor inside a value of {}", options_.format));
      }
      local[made.embedded[i]] = i;
      made.tensors.push_back({tensor.spec, i, tensor.is_parameter, tensor.requires_grad, nullptr});
    }
    made.value = made.embedded.empty() ? value : remap_tensors(value, local);
    made.rows = row_wrapper(made.value, [&](std::uint32_t i) { return made.tensors[i].spec; });
    return made;
  }

  /// The object of some rows of a tensor that is made of several.
  OutputRows make_rows(const OutputValue& whole, const Box& box, const std::string& name) const {
    const Shape& shape = whole.rows->spec.shape;
    const RowRange rows{box.begin(0), box.begin(0) + box.shape[0]};
    const bool is_run = box.shape.inner_numel(0) == shape.inner_numel(0);
    if (!is_run || !whole.rows->can_cut(rows)) refuse_rows(name, whole.value, is_run, rows);
    OutputRows made{box, {}, {}};
    std::vector<std::uint32_t> same(whole.embedded.size());
    for (std::uint32_t i = 0; i < same.size(); ++i) same[i] = i;
    made.value.value = with_rows(whole.value, box.shape[0], same);
    made.value.embedded = whole.embedded;
    made.value.tensors = whole.tensors;
    made.parts.resize(same.size());
    for (const RowPart& part : whole.rows->parts) {
      const RowRange own = *part.rows(shape, rows);
      Box of = Box::whole(part.spec.shape);
      of.origin[0] = own.begin;
      of.shape[0] = own.end - own.begin;
      made.value.tensors[part.tensor].spec.shape = of.shape;
      made.parts[part.tensor] = Chunk::whole_of(std::move(of));
    }
    return made;
  }

  /// Fills `tensors` with the tensors inside a value; returns how long a table over the source's
  /// tensors must be to renumber them.
  std::size_t source_has_tensors_inside(const Value& value,
                                        std::vector<std::uint32_t>& tensors) const {
    std::set<std::uint32_t> seen;
    for_each_tensor(value, [&](std::uint32_t index) {
      if (seen.insert(index).second) tensors.push_back(index);
    });
    return tensors.empty() ? 0 : std::size_t{*seen.rbegin()} + 1;
  }

  void require_storable(const StoredTensor& tensor) const {
    require_torch_dtype(tensor, options_.format);
    if (tensor.quant < 0) return;
    if (!source_.quant[static_cast<std::size_t>(tensor.quant)].scales.is_none()) {
      fail(Code::kUnsupported,
           fmt::format("{} cannot hold a tensor quantized per channel", options_.format),
           "use --to torch-save");
    }
  }

  void begin_file(std::string path) {
    OutputFile file;
    file.path = std::move(path);
    file.first_segment = plan_.segments.size();
    plan_.files.push_back(std::move(file));
    offset_ = 0;
  }
  void end_file() {
    OutputFile& file = plan_.files.back();
    file.segment_count = plan_.segments.size() - file.first_segment;
    file.size_bytes = offset_;
  }

  void add_segment(Segment::Kind kind, std::uint64_t length, std::uint32_t tensor,
                   std::uint64_t payload) {
    plan_.segments.push_back({kind, tensor, offset_, length, payload});
    offset_ += length;
  }

  void add_item(const SavePlan& save, const PlannedItem& planned) {
    OutputItem item;
    item.entry = number_[planned.entry];
    const StoredTensor* tensor = renderer_->tensor(item.entry);
    if (tensor != nullptr) save.box_of(planned, tensor->spec.shape, box_);
    item.rank = static_cast<std::uint32_t>(planned.rank);
    item.offset = offset_;
    if (tensor == nullptr && renderer_->value(item.entry).rows)
      return add_rows(save, planned, std::move(item));
    const TorchArchiveLayout& archive =
        layout_of(item.entry, tensor != nullptr ? box_.shape : scalar_);
    if (tensor != nullptr) {
      item.chunk = plan_.chunks.size();
      plan_.chunks.push_back(ChunkView(box_.origin, box_.shape.extents()));
    }
    item.length = archive.size_bytes();
    const std::uint64_t number = renderer_->items().size();
    TESSERA_CHECK(archive.pieces().size() < (std::size_t{1} << kPieceBits));
    for (std::size_t p = 0; p < archive.pieces().size(); ++p) {
      add_piece(item, planned.tensor, archive.pieces()[p], number << kPieceBits | p);
    }
    renderer_->add_item(item, archive);
  }

  void add_rows(const SavePlan& save, const PlannedItem& planned, OutputItem item) {
    const OutputValue& whole = renderer_->value(item.entry);
    save.box_of(planned, whole.rows->spec.shape, box_);
    const OutputRows& rows =
        renderer_->add_rows(make_rows(whole, box_, renderer_->entry(item.entry).name));
    const TorchArchiveLayout archive = DcpRenderer::layout(rows.value);
    item.length = archive.size_bytes();
    const std::uint64_t number = renderer_->items().size();
    TESSERA_CHECK(archive.pieces().size() < (std::size_t{1} << kPieceBits));
    for (std::size_t p = 0; p < archive.pieces().size(); ++p) {
      const TorchArchiveLayout::Piece& piece = archive.pieces()[p];
      std::uint32_t tensor = 0;
      if (piece.kind == TorchArchiveLayout::Piece::Kind::kStorage && piece.length > 0) {
        tensor = rows.value.embedded[piece.storage];
        item.chunk = plan_.chunks.size();
        plan_.chunks.push_back(rows.parts[piece.storage]);
      }
      add_piece(item, tensor, piece, number << kPieceBits | p);
    }
    renderer_->add_item(item, archive);
  }

  /// The layout of an archive for `shape`. Remembers the last one per entry, because the chunks of
  /// most ranks have one shape.
  const TorchArchiveLayout& layout_of(std::uint32_t entry, const Shape& shape) {
    last_layouts_.resize(number_.size());
    auto& last = last_layouts_[entry];
    if (!last || last->first != shape)
      last.emplace(shape, in_tensor(renderer_->entry(entry).name,
                                    [&] { return renderer_->layout(entry, shape); }));
    return last->second;
  }

  void add_piece(const OutputItem& item, std::uint32_t tensor,
                 const TorchArchiveLayout::Piece& piece, std::uint64_t payload) {
    using Kind = TorchArchiveLayout::Piece::Kind;
    if (piece.length == 0) return;
    if (piece.kind != Kind::kStorage) {
      add_segment(piece.kind == Kind::kLiteral ? Segment::Kind::kLiteral : Segment::Kind::kDeferred,
                  piece.length, 0, payload);
      return;
    }
    std::uint64_t chunk = item.chunk;
    if (renderer_->tensor(item.entry) == nullptr && !renderer_->value(item.entry).rows) {
      tensor = renderer_->value(item.entry).embedded[piece.storage];
      chunk = plan_.chunks.size();
      plan_.chunks.push_back(Chunk::whole_of(Box::whole(source_.tensors[tensor].spec.shape)));
    }
    add_segment(Segment::Kind::kTensor, piece.length, tensor, chunk);
  }

  void add_metadata() {
    begin_file(std::string(kMetadataFile));
    add_segment(Segment::Kind::kLiteral, renderer_->metadata_bytes(plan_), 0, kMetadataPayload);
    end_file();
  }

  const Manifest& source_;
  const TargetRequest& request_;
  const OutputOptions& options_;
  OutputPlan plan_;
  std::shared_ptr<DcpRenderer> renderer_;
  std::vector<std::uint32_t> number_;  // source entry -> written entry
  std::vector<std::optional<std::pair<Shape, TorchArchiveLayout>>>
      last_layouts_;  // by written entry
  std::uint64_t offset_ = 0;
  Box box_;  // of the item that is being added
  const Shape scalar_;
};

}  // namespace

OutputPlan make_output_plan(const Manifest& source, const TargetRequest& request,
                            const OutputOptions& options) {
  return OutputBuilder(source, request, options).build();
}

}  // namespace tessera::dcp
