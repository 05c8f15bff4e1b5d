// The page's data: what is the same for many tensors (types, shapes, where pieces lie) stands once in a table,
// and names share their beginnings with the one before, so that a tensor takes some 40 bytes.
#include <fmt/format.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/ls.h>
#include <tessera/tensor/dtype.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "tools/documents/documents.h"
#include "tools/documents/json_report.h"
#include "tools/report/report.h"
#include "tools/version.h"

namespace tessera::tools {
namespace {

constexpr std::size_t kBytesPerNumber = 9;  // of six digits, on average

std::string text(std::string_view text) { return dump_json(json_text(text)); }

/// Six digits: more than a picture shows, and half the bytes.
std::string real(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  return fmt::format("{:.6g}", value);
}
std::string real(const std::optional<double>& value) { return value ? real(*value) : "null"; }

template <class Items, class F>
std::string list(const Items& items, F&& f) {
  std::string out = "[";
  for (const auto& item : items) {
    if (out.size() > 1) out += ',';
    out += f(item);
  }
  return out + "]";
}
std::string numbers(std::span<const std::int64_t> values) {
  return list(values, [](std::int64_t value) { return std::to_string(value); });
}

/// Texts (JSON already), each once; a column of a table refers to them by number.
class Table {
 public:
  std::size_t operator[](const std::string& item) {
    const auto [found, is_new] = numbers_.emplace(item, items_.size());
    if (is_new) {
      items_.push_back(item);
      bytes_ += item.size() + 1;
    }
    return found->second;
  }
  bool has(const std::string& item) const { return numbers_.contains(item); }
  std::uint64_t bytes() const { return bytes_; }
  std::string json() const {
    return list(items_, [](const std::string& item) { return item; });
  }

 private:
  std::map<std::string, std::size_t> numbers_;
  std::vector<std::string> items_;
  std::uint64_t bytes_ = 0;
};

/// One number of each tensor.
class Column {
 public:
  void add(std::int64_t value) {
    if (!text_.empty()) text_ += ',';
    text_ += std::to_string(value);
  }
  std::string json() const { return "[" + text_ + "]"; }

 private:
  std::string text_;
};

/// Bytes that are left, and what was left out for want of them.
class Room {
 public:
  explicit Room(std::uint64_t bytes) : left_(bytes) {}
  bool has(std::uint64_t bytes) const { return bytes <= left_; }
  std::uint64_t left() const { return left_; }
  void take(std::uint64_t bytes) { left_ -= std::min(left_, bytes); }
  void leave_out(std::string what) { left_out_.push_back(std::move(what)); }
  const std::vector<std::string>& left_out() const { return left_out_; }

 private:
  std::uint64_t left_;
  std::vector<std::string> left_out_;
};

std::string piece_json(const ChunkRow& row) {
  return fmt::format("[{},{},{},{},{}]", numbers(row.offsets), numbers(row.lengths),
                     row.is_flat ? row.flat_begin : -1, row.is_flat ? row.flat_end : -1,
                     row.rank ? std::to_string(*row.rank) : "null");
}

std::string tensors_json(const OpenedCheckpoint& opened, Room& room) {
  LsOptions with_chunks;
  with_chunks.chunks = true;
  const LsRows rows(opened.manifest, with_chunks);
  std::map<std::string, std::size_t> files;
  for (std::size_t i = 0; i < opened.manifest.files.size(); ++i)
    files.emplace(opened.manifest.files[i].path, i);
  Table dtypes, kinds, shapes, shardings, file_sets, layouts;
  Column shared, dtype, kind, shape, sharding, file_set, layout;
  std::string suffixes, before;
  // Pieces may take half of the room: a tensor cut over thousands of ranks has thousands.
  const std::uint64_t most_layouts = room.left() / 2;
  std::uint64_t without_layout = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const LsTensor row = rows[i];
    const std::string name(row.name);
    const auto same = std::ranges::mismatch(before, name);
    // Cut between characters: what is shared counts UTF-16 units in the page.
    std::size_t common = static_cast<std::size_t>(same.in1 - before.begin());
    if (std::ranges::any_of(name, [](unsigned char c) { return c < 0x20 || c >= 0x7f; }) ||
        std::ranges::any_of(before, [](unsigned char c) { return c < 0x20 || c >= 0x7f; }))
      common = 0;
    shared.add(static_cast<std::int64_t>(common));
    suffixes += (i == 0 ? "" : ",") + text(std::string_view(name).substr(common));
    before = name;
    const auto type = dtype_from_torch_name(row.dtype);
    dtype.add(static_cast<std::int64_t>(
        dtypes[fmt::format("[{},{}]", text(row.dtype), type ? bits(*type) : 0)]));
    kind.add(static_cast<std::int64_t>(kinds[text(kind_name(row.kind))]));
    shape.add(static_cast<std::int64_t>(shapes[numbers(row.shape)]));
    sharding.add(static_cast<std::int64_t>(shardings[text(row.sharding)]));
    file_set.add(static_cast<std::int64_t>(file_sets[list(row.files, [&](const std::string& file) {
      const auto found = files.find(file);
      return std::to_string(found == files.end() ? -1 : static_cast<std::int64_t>(found->second));
    })]));
    const std::string pieces = list(row.table, piece_json);
    const bool fits = layouts.has(pieces) || layouts.bytes() + pieces.size() <= most_layouts;
    layout.add(fits ? static_cast<std::int64_t>(layouts[pieces]) : -1);
    without_layout += !fits;
  }
  if (without_layout > 0)
    room.leave_out(fmt::format("where the pieces of {} tensors lie", without_layout));
  std::string out = fmt::format(
      "{{\"n\":{},\"shared\":{},\"suffix\":[{}],\"dtype\":{},\"kind\":{},\"shape\":{},"
      "\"sharding\":{},\"files\":{},\"layout\":{},\"tables\":{{\"dtypes\":{},\"kinds\":{},"
      "\"shapes\":{},\"shardings\":{},\"file_sets\":{},\"layouts\":{}}}}}",
      rows.size(), shared.json(), suffixes, dtype.json(), kind.json(), shape.json(),
      sharding.json(), file_set.json(), layout.json(), dtypes.json(), kinds.json(), shapes.json(),
      shardings.json(), file_sets.json(), layouts.json());
  room.take(out.size());
  return out;
}

std::string histogram_json(const std::optional<Histogram>& histogram) {
  if (!histogram || histogram->counts.empty()) return "null";
  return fmt::format("[{},{},{}{}]", real(histogram->low), real(histogram->high),
                     histogram->logarithmic ? std::to_string(histogram->zeros) + "," : "",
                     numbers(histogram->counts));
}

std::string norms_json(const std::vector<double>& norms, std::size_t most) {
  if (most == 0) return "[]";
  return list(grouped_norms(norms, most), [](double value) { return real(value); });
}

std::string numbers_json(const TensorStat& stat) {
  return fmt::format("{},{},{},{},{},{},{},{},{},{}", stat.finite, stat.nan,
                     stat.pos_inf + stat.neg_inf, stat.zeros, real(stat.min), real(stat.max),
                     real(stat.mean), real(stat.std), real(stat.l2),
                     list(stat.quantiles, [](double value) { return real(value); }));
}

/// Rows in the order of the tensors. Numbers always; histograms and norms as far as there is room.
std::string stat_json(const ReportSide& side, Room& room) {
  if (!side.stat) return "null";
  const std::vector<TensorStat>& stats = side.stat->tensors;
  std::vector<std::string> rows;
  std::uint64_t bytes = 0, histogram_bytes = 0, matrices = 0;
  std::vector<std::string> histograms;
  for (std::size_t i = 0; i < stats.size(); ++i) {
    rows.push_back(stats[i].skipped.empty() ? numbers_json(stats[i]) : "");
    histograms.push_back(histogram_json(stats[i].histogram) + "," +
                         histogram_json(stats[i].log_histogram));
    bytes += rows.back().size() + 16;
    histogram_bytes += histograms.back().size();
    matrices += !stats[i].row_norms.empty();
  }
  room.take(bytes);
  const bool with_histograms = room.has(histogram_bytes);
  if (with_histograms)
    room.take(histogram_bytes);
  else
    room.leave_out(
        fmt::format("histograms of {} tensors ({} KiB)", stats.size(), histogram_bytes >> 10));
  const std::size_t bins =
      matrices == 0
          ? 0
          : std::min<std::size_t>(kReportNorms, room.left() / 2 / (matrices * kBytesPerNumber));
  if (matrices > 0 && bins < kReportNorms)
    room.leave_out(
        fmt::format("norms of single rows: {} means a matrix instead of {}", bins, kReportNorms));
  std::string out = fmt::format("{{\"quantiles\":{},\"rows\":[",
                                list(side.stat->quantiles, [](double q) { return real(q); }));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i > 0) out += ',';
    if (rows[i].empty())
      out += "null";
    else
      out += fmt::format("[{},{},{}]", rows[i], with_histograms ? histograms[i] : "null,null",
                         norms_json(stats[i].row_norms, bins));
  }
  return out + "]}";
}

std::string notes_json(const std::vector<Note>& notes) { return dump_json(json_notes(notes)); }

std::string optim_json(const ReportSide& side) {
  if (!side.optim) return "null";
  const auto optimizer = [](const OptimizerReport& report) {
    const std::string groups = list(report.groups, [](const OptimReportGroup& group) {
      return fmt::format("{{\"index\":{},\"members\":{},\"options\":{}}}", group.index,
                         group.members.size(), dump_json(json_values_object(group.options)));
    });
    const std::string sets = list(report.leaf_sets, [](const LeafSetRow& row) {
      return fmt::format("{{\"leaves\":{},\"step\":{},\"count\":{}}}", text(row.leaves),
                         real(row.step), row.count);
    });
    const std::string updates = list(report.updates, [](const UpdateRow& row) {
      return fmt::format("[{},{},{},{},{},{},{},{}]", text(row.fqn), real(row.ratio),
                         real(row.update_norm), real(row.weight_norm), real(row.m_norm),
                         real(row.v_max), real(row.lr), real(row.growth));
    });
    return fmt::format(
        "{{\"root\":{},\"kind\":{},\"dialect\":{},\"parameters\":{},\"update_note\":{},"
        "\"groups\":{},\"leaf_sets\":{},\"updates\":{}}}",
        text(report.root), text(report.kind), text(report.dialect), report.parameters.size(),
        text(report.update_note), groups, sets, updates);
  };
  return fmt::format("{{\"optimizers\":{},\"findings\":{}}}",
                     list(side.optim->optimizers, optimizer), notes_json(side.optim->findings));
}

std::string files_json(const OpenedCheckpoint& opened) {
  return list(opened.manifest.files, [](const StoredFile& file) {
    const auto rank = writing_rank(file.path);
    return fmt::format("[{},{},{}]", text(file.path), file.size_bytes,
                       rank ? std::to_string(*rank) : "null");
  });
}

std::string side_json(const ReportSide& side, Room& room) {
  const std::string summary = dump_json(summary_document(side.summary));
  const std::string files = files_json(*side.opened), findings = notes_json(side.findings);
  const std::string optim = optim_json(side);
  room.take(summary.size() + files.size() + findings.size() + optim.size());
  const std::string tensors = tensors_json(*side.opened, room);
  return fmt::format(
      "{{\"title\":{},\"summary\":{},\"files\":{},\"findings\":{},\"optim\":{},\"tensors\":{},"
      "\"stat\":{}}}",
      text(side.opened->display), summary, files, findings, optim, tensors, stat_json(side, room));
}

std::string diff_json(const DiffReport* diff) {
  if (diff == nullptr) return "null";
  const std::string tensors = list(diff->tensors, [](const TensorDiff& row) {
    return fmt::format("[{},{},{},{},{},{},{},{},{},{}]", text(row.name),
                       text(diff_kind_name(row.what)), text(row.a), text(row.b), row.count,
                       row.numel, real(row.max_abs), real(row.l2), real(row.relative_l2),
                       real(row.cosine));
  });
  const std::string values = list(diff->values, [](const ValueDiff& row) {
    return fmt::format("[{},{},{},{}]", text(row.name), text(diff_kind_name(row.what)),
                       text(dump_json(row.a)), text(dump_json(row.b)));
  });
  return fmt::format(
      "{{\"equal\":{},\"tensors_compared\":{},\"tensors_equal\":{},\"not_compared\":{},"
      "\"bytes\":{},\"tensors\":{},\"values\":{}}}",
      diff->equal, diff->tensors_compared, diff->tensors_equal, diff->not_compared, diff->bytes,
      tensors, values);
}

}  // namespace

ReportData report_data(const ReportPage& page, std::uint64_t budget_bytes) {
  Room room(budget_bytes);
  const std::string difference = diff_json(page.diff);
  room.take(difference.size());
  const std::string first = side_json(*page.a, room);
  const std::string second = page.b != nullptr ? side_json(*page.b, room) : "null";
  std::string json = fmt::format(
      "{{\"schema\":\"tessera.page/1\",\"version\":{},\"opens\":{},\"a\":{},\"b\":{},\"diff\":{},"
      "\"left_out\":{}}}",
      text(kVersion), text(page.opens), first, second, difference,
      list(room.left_out(), [](const std::string& what) { return text(what); }));
  return {std::move(json), room.left_out()};
}

}  // namespace tessera::tools
