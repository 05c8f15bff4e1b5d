#include <fmt/format.h>
#include <tessera/base/text.h>

#include "tools/render/number_text.h"
#include "tools/render/render.h"
#include "tools/render/table.h"

namespace tessera::tools {
namespace {

std::string files_text(const std::vector<std::string>& files) {
  if (files.empty()) return "-";
  if (files.size() == 1) return printable(files[0]);
  return fmt::format("{} +{}", printable(files[0]), files.size() - 1);
}

std::string chunks_text(const LsTensor& tensor) {
  std::string text = tensor.sharding.empty() ? fmt::format("{}", tensor.chunks) : tensor.sharding;
  if (tensor.replicas > 1) text += fmt::format(", {} copies", tensor.replicas);
  return text;
}

std::vector<Cell> tensor_cells(const LsTensor& tensor) {
  return {printable(tensor.name),     tensor.dtype,           shape_text(tensor.shape),
          format_bytes(tensor.bytes), kind_name(tensor.kind), chunks_text(tensor),
          files_text(tensor.files)};
}

/// Rows are made twice: to measure them and to write them.
void write_tensor_table(const LsSource& source, const Screen& screen, const Sink& sink) {
  Table table({{"name", false, 1},
               {"type"},
               {"shape"},
               {"bytes", true},
               {"kind"},
               {"chunks"},
               {"files", false, 2}});
  for (std::size_t i = 0; i < source.count; ++i) table.measure(tensor_cells(source.tensor(i)));
  const TableLines lines = table.lines(screen);
  if (source.count > 0) sink(lines.head());
  for (std::size_t i = 0; i < source.count; ++i) sink(lines.line(tensor_cells(source.tensor(i))));
}

std::string chunk_rows(const LsTensor& tensor, const Screen& screen) {
  Table table(
      {{"place"}, {"file", false, 2}, {"at", true}, {"bytes", true}, {"rank", true}, {"as"}});
  for (const ChunkRow& row : tensor.table) {
    std::string as = row.source == "extent" || row.source == "item" ? "" : row.source;
    if (row.replica > 0) as += fmt::format("{}copy {}", as.empty() ? "" : ", ", row.replica + 1);
    const bool in_file = !row.file.empty();
    table.add({chunk_place(row), in_file ? printable(row.file) : "-",
               in_file ? fmt::format("{}", row.file_offset) : "-",
               in_file ? fmt::format("{}", row.file_length) : "-",
               row.rank ? fmt::format("{}", *row.rank) : "-", as});
  }
  return table.render(screen, "  ");
}

void write_chunk_listing(const LsSource& source, const Screen& screen, const Sink& sink) {
  for (std::size_t i = 0; i < source.count; ++i) {
    const LsTensor tensor = source.tensor(i);
    sink(name_and_facts(printable(tensor.name),
                        fmt::format("{} {}  {}", tensor.dtype, shape_text(tensor.shape),
                                    counted(tensor.chunks, "chunk")),
                        screen));
    sink(chunk_rows(tensor, screen));
  }
}

std::string value_table(const LsReport& r, const Screen& screen) {
  if (r.values.empty()) return {};
  Table table({{"value", false, 1}, {"", false, 2}});
  for (const auto& [name, value] : r.values) table.add({printable(name), value_text(value)});
  return table.render(screen);
}

}  // namespace

void write_ls(const LsReport& r, const LsSource& source, bool chunks, const Screen& screen,
              const Sink& sink) {
  if (chunks) {
    write_chunk_listing(source, screen, sink);
  } else {
    write_tensor_table(source, screen, sink);
    if (source.count > 0 && !r.values.empty()) sink("\n");
    sink(value_table(r, screen));
  }
  sink(name_and_facts(fmt::format("{}, {}, {}; {}", counted(source.count, "tensor"),
                                  counted(static_cast<std::uint64_t>(r.total_numel), "element"),
                                  format_bytes(r.total_bytes), counted(r.values.size(), "value")),
                      "", screen, Tint::kDim));
  if (!r.aliases.empty()) sink("tied, stored once: " + printable(aliases_text(r.aliases)) + "\n");
  sink(render_notes(r.notes, 5, screen));
}

}  // namespace tessera::tools
