// What several renderings share.
#include "tools/render/render.h"

#include <fmt/format.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "tools/render/number_text.h"

namespace tessera::tools {
namespace {

constexpr int kLabelWidth = 11;

Tint severity_tint(Severity severity) {
  if (severity == Severity::kError) return Tint::kRed;
  return severity == Severity::kWarning ? Tint::kYellow : Tint::kDim;
}

std::string note_text(const Note& note) {
  std::string where;
  if (!note.tensor.empty()) where += fmt::format("tensor \"{}\" ", printable(note.tensor));
  if (!note.file.empty()) where += fmt::format("[{}] ", printable(note.file));
  return where + printable(note.message);
}

}  // namespace

std::string name_and_facts(std::string_view name, std::string_view facts, const Screen& screen,
                           Tint tint) {
  const bool fits = screen.whole || display_width(name) + 2 + display_width(facts) <= screen.width;
  if (fits && !facts.empty()) return fmt::format("{}  {}\n", screen.paint(tint, name), facts);
  std::string lines = screen.wrap(name, "");
  if (!lines.empty()) lines.pop_back();
  return screen.paint(tint, lines) + "\n" + screen.wrap(facts, "  ");
}

std::string fact_line(std::string_view label, std::string_view text, const Screen& screen) {
  // A label that is longer than its column keeps its letters and moves the text.
  constexpr int kLongestLabel = 24;  // one that a file chose may have any length
  const std::string whole = clip_end(label, kLongestLabel);
  const std::string head = pad_right(whole, std::max(kLabelWidth, display_width(whole) + 1));
  const int room = screen.width - 2 - display_width(head);
  return "  " + screen.paint(Tint::kDim, head) +
         (screen.whole ? std::string(text) : clip_end(text, room)) + "\n";
}

std::string fact_lines(std::string_view label, std::string_view text, int limit,
                       const Screen& screen) {
  if (screen.whole) return fact_line(label, text, screen);
  const std::string lines = wrap(text, screen.width - 2 - kLabelWidth, "");
  std::string result;
  std::size_t at = 0;
  for (int i = 0; i < limit && at < lines.size(); ++i) {
    const std::size_t end = lines.find('\n', at);
    const bool last = i + 1 == limit && end + 1 < lines.size();
    const std::string line = lines.substr(at, end - at) + (last ? " …" : "");
    result += fact_line(i == 0 ? label : "", line, screen);
    at = end + 1;
  }
  return result;
}

std::string aliases_text(const std::vector<Alias>& aliases) {
  std::string text;
  for (const auto& [name, kept] : aliases)
    text += fmt::format("{}{} = {}", text.empty() ? "" : "; ", name, kept);
  return text;
}

std::string render_notes(const std::vector<Note>& notes, std::size_t limit, const Screen& screen) {
  std::vector<const Note*> order;
  for (const Note& note : notes) order.push_back(&note);
  std::ranges::stable_sort(order, std::greater<>(), &Note::severity);
  std::string text;
  for (std::size_t i = 0; i < std::min(limit, order.size()); ++i) {
    const Note& note = *order[i];
    const std::string head =
        fmt::format("{} {}", severity_name(note.severity), code_text(note.code));
    const std::string indent(static_cast<std::size_t>(display_width(head)) + 4, ' ');
    const std::string body = screen.wrap(note_text(note), indent);
    text += "  " + screen.paint(severity_tint(note.severity), head) + "  " +
            (body.size() > indent.size() ? body.substr(indent.size()) : "\n");
  }
  if (order.size() > limit) text += fmt::format("  ... and {} more\n", order.size() - limit);
  return text;
}

std::vector<Note> grouped_notes(const std::vector<Note>& notes, std::string_view noun) {
  constexpr std::size_t kApart = 3;
  std::map<std::pair<Finding, std::string>, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < notes.size(); ++i)
    if (!notes[i].tensor.empty())
      groups[{notes[i].code, without_numbers(notes[i].message)}].push_back(i);
  std::vector<bool> shown(notes.size(), false);
  std::vector<Note> lines;
  for (std::size_t i = 0; i < notes.size(); ++i) {
    if (shown[i]) continue;
    Note line = notes[i];
    const auto group = groups.find({line.code, without_numbers(line.message)});
    if (!line.tensor.empty() && group->second.size() > kApart) {
      for (const std::size_t member : group->second) shown[member] = true;
      line.message = fmt::format("{}, \"{}\" and others: {}", counted(group->second.size(), noun),
                                 line.tensor, line.message);
      line.tensor.clear();
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string value_text(const Value& value) { return printable(dump_json(value)); }

std::string chunk_place(const ChunkRow& row) {
  std::vector<std::string> ranges;
  for (std::size_t d = 0; d < row.offsets.size(); ++d) {
    ranges.push_back(fmt::format("{}:{}", row.offsets[d], row.offsets[d] + row.lengths[d]));
  }
  std::string text = fmt::format("[{}]", fmt::join(ranges, ", "));
  if (row.is_flat) text += fmt::format(" elements {}..{}", row.flat_begin, row.flat_end);
  return text;
}

}  // namespace tessera::tools
