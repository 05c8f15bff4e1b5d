#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>

#include "tools/render/number_text.h"
#include "tools/render/render.h"
#include "tools/render/table.h"

namespace tessera::tools {
namespace {

constexpr std::size_t kMostChunkRows = 64;
constexpr std::size_t kMostMatrices = 8;

}  // namespace

std::string show_facts(const ShowReport& r, const Screen& screen) {
  const LsTensor& t = r.tensor;
  std::string text = name_and_facts(printable(r.name), "", screen);
  text += fact_line("type", t.dtype, screen);
  text += fact_line("shape",
                    fmt::format("{}, {}", shape_text(t.shape),
                                counted(static_cast<std::uint64_t>(t.numel), "element")),
                    screen);
  const std::string bytes = counted(t.bytes, "byte");
  text += fact_line("size", t.bytes < 1024 ? bytes : bytes + ", " + format_bytes(t.bytes), screen);
  text += fact_line("kind", kind_name(t.kind), screen);
  std::string chunks = fmt::format("{}", t.chunks);
  if (!t.sharding.empty()) chunks += ", " + t.sharding;
  if (t.replicas > 1) chunks += fmt::format(", {} copies of each", t.replicas);
  text += fact_line("chunks", chunks, screen);
  for (const auto& [key, value] : r.facts)
    text += fact_line(printable(key), printable(value), screen);
  return text;
}

std::string chunk_table(const LsTensor& t, std::size_t most, const Screen& screen) {
  Table table({{"#", true},
               {"place"},
               {"file", false, 1},
               {"bytes"},
               {"rank", true, 0, true},
               {"copy", true, 0, true}});
  for (std::size_t i = 0; i < std::min(most, t.table.size()); ++i) {
    const ChunkRow& row = t.table[i];
    table.add({fmt::format("{}", i), chunk_place(row),
               row.file.empty() ? row.source : printable(row.file),
               row.file.empty()
                   ? "-"
                   : fmt::format("{}..{}", row.file_offset, row.file_offset + row.file_length),
               row.rank ? fmt::format("{}", *row.rank) : "-", fmt::format("{}", row.replica + 1)});
  }
  std::string text = table.render(screen, "  ");
  if (t.table.size() > most) {
    text += fmt::format("  ... and {} more: ls --chunks lists all\n", t.table.size() - most);
  }
  return text;
}

namespace {

/// Values in rows of the last dim, a block per index of the dims before the last two.
class ValueBlocks {
 public:
  ValueBlocks(const ShowReport& report, const Screen& screen) : r_(report), screen_(screen) {
    for (const std::string& value : r_.values) cell_ = std::max(cell_, display_width(value));
  }

  std::string render() const {
    const std::vector<std::vector<std::int64_t>>& dims = r_.shown;
    if (dims.empty()) return r_.values.empty() ? "" : "  " + r_.values[0] + "\n";
    if (dims.size() == 1) return row(dims[0], 0, "  ");
    const std::size_t rows = dims[dims.size() - 2].size();
    const std::size_t columns = dims.back().size();
    std::size_t blocks = 1;
    for (std::size_t d = 0; d + 2 < dims.size(); ++d) blocks *= dims[d].size();
    std::string text;
    for (std::size_t b = 0; b < std::min(blocks, kMostMatrices); ++b) {
      if (dims.size() > 2) text += "  " + block_label(b) + "\n";
      text += matrix(b * rows * columns);
    }
    if (blocks > kMostMatrices)
      text += fmt::format("  ... and {} more blocks: --slice chooses\n", blocks - kMostMatrices);
    return text;
  }

 private:
  std::string block_label(std::size_t block) const {
    std::vector<std::string> parts(r_.shown.size(), ":");
    for (std::size_t d = r_.shown.size() - 2; d-- > 0;) {
      parts[d] = fmt::format("{}", r_.shown[d][block % r_.shown[d].size()]);
      block /= r_.shown[d].size();
    }
    return fmt::format("[{}]", fmt::join(parts, ", "));
  }

  std::string matrix(std::size_t first) const {
    const auto& rows = r_.shown[r_.shown.size() - 2];
    const auto& columns = r_.shown.back();
    int label = 0;
    for (const std::int64_t i : rows)
      label = std::max(label, static_cast<int>(fmt::format("{}", i).size()));
    std::string text;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i && rows[i] != rows[i - 1] + 1) text += "  " + pad_left("…", label) + "\n";
      const std::string head =
          "  " + screen_.paint(Tint::kDim, pad_left(fmt::format("{}", rows[i]), label)) + "  ";
      text += row(columns, first + i * columns.size(), head, label + 4);
    }
    return text;
  }

  /// The columns that fit, where corners are shown: the outermost ones. A slice is shown whole, as it
  /// was asked for.
  std::vector<std::size_t> fitting(std::size_t count, int indent) const {
    const int room = (screen_.width - indent - 2) / (cell_ + 1);
    const std::size_t most = static_cast<std::size_t>(std::max(2, room));
    std::vector<std::size_t> columns;
    const bool all = !r_.elided || screen_.whole || count <= most;
    for (std::size_t c = 0; c < count; ++c)
      if (all || c < (most + 1) / 2 || c >= count - most / 2) columns.push_back(c);
    return columns;
  }

  /// As many values as fit, the rest on lines below; where lines stay whole, one line.
  std::string row(const std::vector<std::int64_t>& columns, std::size_t first,
                  const std::string& head, int indent = 2) const {
    std::string text;
    std::string line = head;
    int used = indent;
    std::int64_t before = 0;
    for (const std::size_t c : fitting(columns.size(), indent)) {
      if (first + c >= r_.values.size()) break;
      const bool gap = c && columns[c] != before + 1;
      before = columns[c];
      const bool fits = used + cell_ + (gap ? 2 : 0) <= screen_.width;
      if (!fits && !screen_.whole && used > indent) {
        text += line + "\n";
        line = std::string(static_cast<std::size_t>(indent), ' ');
        used = indent;
      }
      if (gap) line += "… ";
      line += pad_left(printable(r_.values[first + c]), cell_) + " ";
      used += cell_ + 1 + (gap ? 2 : 0);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return text + line + "\n";
  }

  const ShowReport& r_;
  const Screen& screen_;
  int cell_ = 1;
};

std::string values_text(const ShowReport& r, const Screen& screen) {
  if (r.tensor.numel == 0) return "  no elements\n";
  if (std::ranges::find(r.slice_shape, 0) != r.slice_shape.end())
    return "  the slice holds no elements\n";
  if (r.values.empty()) return {};
  std::string title = r.elided ? "values (corners)" : "values";
  if (!r.element_text_is_number) title += " as bit patterns";
  return screen.paint(Tint::kBold, title) + "\n" + ValueBlocks(r, screen).render();
}

std::string value_report(const ShowReport& r, const Screen& screen) {
  if (r.children.empty()) return value_text(r.value) + "\n";
  std::string text = screen.paint(Tint::kBold, printable(r.name)) + "\n";
  for (const std::string& child : r.children) text += screen.wrap(printable(child), "  ");
  return text;
}

}  // namespace

std::string render_show(const ShowReport& r, const Screen& screen) {
  if (r.what == ShowReport::What::kValue) return value_report(r, screen);
  std::string text = show_facts(r, screen);
  const std::string map = chunk_map(r.tensor, screen);
  if (!map.empty()) text += screen.paint(Tint::kBold, "chunk map") + "\n" + map;
  if (!r.tensor.table.empty()) text += chunk_table(r.tensor, kMostChunkRows, screen);
  return text + values_text(r, screen);
}

}  // namespace tessera::tools
