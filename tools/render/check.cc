// hash, verify and diff as people read them.
#include <fmt/format.h>
#include <tessera/base/text.h>
#include <tessera/tensor/dtype.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tools/render/number_text.h"
#include "tools/render/render.h"
#include "tools/render/table.h"

namespace tessera::tools {
namespace {

constexpr std::size_t kHashDigits = 16;  // shown per tensor; the roots and JSON have all 64

std::size_t with_severity(const std::vector<Note>& notes, Severity severity) {
  return static_cast<std::size_t>(std::count_if(
      notes.begin(), notes.end(), [&](const Note& note) { return note.severity == severity; }));
}

std::string scale_text(const HashedQuantizer& quantizer) {
  if (quantizer.is_per_channel()) return fmt::format("scales along {}", quantizer.axis);
  return fmt::format("scale {}, zero {}", real_text(quantizer.scale), quantizer.zero_point);
}

std::string tensor_difference(const TensorDiff& d) {
  switch (d.what) {
    case TensorDiff::What::kMissing:
      return "only in A";
    case TensorDiff::What::kUnexpected:
      return "only in B";
    case TensorDiff::What::kShape:
      return fmt::format("shape: {} against {}", d.a, d.b);
    case TensorDiff::What::kDType:
      return fmt::format("type: {} against {}", d.a, d.b);
    case TensorDiff::What::kQuantizer:
      return fmt::format("quantizer: {} against {}", d.a, d.b);
    case TensorDiff::What::kValues:
      break;
  }
  const double part = d.numel ? static_cast<double>(d.count) / static_cast<double>(d.numel) : 0;
  return fmt::format("{} of {} differ ({})", count_text(static_cast<std::uint64_t>(d.count)),
                     count_text(static_cast<std::uint64_t>(d.numel)), percent_text(part));
}

std::string difference_details(const TensorDiff& d) {
  std::string text = fmt::format("max abs {}, max rel {}, L2 {} (relative {}), cosine {}",
                                 real_text(d.max_abs), real_text(d.max_rel), real_text(d.l2),
                                 real_text(d.relative_l2), real_text(d.cosine, 8));
  if (d.first)
    text += fmt::format("; first at {}: {} against {}", index_text(d.first_index), d.first_a,
                        d.first_b);
  if (d.nonfinite_mismatch)
    text += fmt::format("; {} NaN or Inf on one side", d.nonfinite_mismatch);
  return text;
}

std::string tensor_differences(const DiffReport& r, std::size_t limit, const Screen& screen) {
  std::string text;
  for (std::size_t i = 0; i < std::min(limit, r.tensors.size()); ++i) {
    const TensorDiff& d = r.tensors[i];
    const std::string what = printable(tensor_difference(d));
    text += name_and_facts(printable(d.name), what, screen);
    if (d.what == TensorDiff::What::kValues)
      text += screen.wrap(printable(difference_details(d)), "    ");
  }
  if (r.tensors.size() > limit)
    text += fmt::format("... and {} more tensors: -n shows more\n", r.tensors.size() - limit);
  return text;
}

/// |a - b| as a part of |a|.
Cell change_text(double relative) {
  if (std::isnan(relative)) return {"NaN or Inf", Tint::kRed};
  return std::isinf(relative) ? "was zero" : percent_text(relative);
}

/// A line for each layer: how far it moved, and its tensor that moved most.
std::string layer_differences(const std::vector<LayerDiff>& layers, std::size_t limit,
                              const Screen& screen) {
  const int bar_width = screen.width < 100 ? 6 : 16;
  double top = 0;
  for (const LayerDiff& layer : layers)
    if (std::isfinite(layer.relative_l2)) top = std::max(top, layer.relative_l2);
  Table table({{"layer", false, 1},
               {"", false, 0, true},
               {"change", true},
               {"tensors", true},
               {"most changed"},  // q, k or v: its middle differs
               {"change", true},
               {""}});
  for (std::size_t i = 0; i < std::min(limit, layers.size()); ++i) {
    const LayerDiff& layer = layers[i];
    const bool finite = std::isfinite(layer.relative_l2);
    const double part = !finite ? 1 : top > 0 ? layer.relative_l2 / top : 0;
    const bool below = layer.most_changed.starts_with(layer.name + ".");
    const std::string most = layer.most_changed.substr(below ? layer.name.size() + 1 : 0);
    const std::string other =
        layer.other_form ? fmt::format("{} of another form or on one side", layer.other_form) : "";
    table.add({printable(layer.name), Cell(pad_right(bar(part, bar_width), bar_width), Tint::kCyan),
               change_text(layer.relative_l2), count_text(layer.tensors), printable(most),
               most.empty() ? "-" : change_text(layer.most_relative_l2),
               Cell(other, Tint::kYellow)});
  }
  std::string text = table.empty() ? std::string() : table.render(screen);
  if (layers.size() > limit)
    text += fmt::format("... and {} more layers: -n shows more\n", layers.size() - limit);
  return text;
}

std::string value_differences(const DiffReport& r, std::size_t limit, const Screen& screen) {
  Table table({{"value", false, 1}, {"A", false, 1}, {"B", false, 1}});
  const auto side = [](bool there, const Value& whole, bool inside,
                       const std::optional<Value>& at) -> std::string {
    if (!there || (inside && !at)) return "(absent)";
    return value_text(inside ? *at : whole);
  };
  for (std::size_t i = 0; i < std::min(limit, r.values.size()); ++i) {
    const ValueDiff& d = r.values[i];
    const bool in_a = d.what != ValueDiff::What::kUnexpected;
    const bool in_b = d.what != ValueDiff::What::kMissing;
    const bool inside = !d.path.empty();
    table.add({printable(inside ? fmt::format("{}: {}", d.name, d.path) : d.name),
               side(in_a, d.a, inside, d.at_a), side(in_b, d.b, inside, d.at_b)});
  }
  std::string text = table.empty() ? std::string() : table.render(screen);
  if (r.values.size() > limit)
    text += fmt::format("... and {} more values: -n shows more\n", r.values.size() - limit);
  return text;
}

/// One line for all that a cause took along.
Note cause_line(const DamageCause& cause) {
  Note line{cause.code, cause.severity, cause.message, cause.file, ""};
  if (!cause.file.empty() && cause.message.starts_with(cause.file)) line.file.clear();
  if (cause.findings == 1 && cause.tensors.size() == 1) line.tensor = cause.tensors[0];
  if (cause.findings == 1 || cause.tensors.empty()) return line;
  line.message += fmt::format(": {}", counted(cause.tensors.size(), "tensor"));
  for (std::size_t i = 0; i < std::min<std::size_t>(2, cause.tensors.size()); ++i)
    line.message += fmt::format(", \"{}\"", cause.tensors[i]);
  if (cause.tensors.size() > 2) line.message += ", ...";
  return line;
}

}  // namespace

std::string not_compared_text(std::uint64_t values) {
  return values ? fmt::format("; {} not compared to the end", counted(values, "value")) : "";
}

std::string render_hash(const HashReport& r, const Screen& screen) {
  Table table({{"sha256"}, {"type"}, {"shape"}, {"name", false, 1}});
  for (const HashedTensor& t : r.tensors) {
    const std::string type =
        t.quantizer ? fmt::format("{}, {}", t.dtype, scale_text(*t.quantizer)) : t.dtype;
    table.add({t.sha256.substr(0, kHashDigits), type, shape_text(t.shape), printable(t.name)});
  }
  std::string text = table.empty() ? std::string() : table.render(screen);
  text += fmt::format("root    {}\nvalues  {}\n", r.root, r.values_root);
  text += screen.paint(Tint::kDim,
                       fmt::format("{}, {}{}", counted(r.tensors.size(), "tensor"),
                                   format_bytes(r.bytes), not_compared_text(r.not_compared))) +
          "\n";
  return text + render_notes(r.notes, 5, screen);
}

namespace {

std::string beside_state(const VerifiedBeside& row) {
  if (!row.ok) return "damaged";
  if (row.opened) return fmt::format("{}, ok", counted(row.tensors, "tensor"));
  return "not looked into: " + printable(row.why);
}

}  // namespace

std::string render_verify(const VerifyReport& r, const Screen& screen) {
  std::vector<Note> lines;
  for (const DamageCause& cause : r.causes) lines.push_back(cause_line(cause));
  std::string text;
  const std::string path = screen.clip(printable(r.path), std::max(20, screen.width - 40));
  const std::string read = fmt::format(
      "{}, {}, {}; {} read, {} of {} under checksums", counted(r.files, "file"),
      counted(r.tensors, "tensor"), counted(r.chunks, "chunk"), format_bytes(r.bytes_read),
      format_bytes(r.bytes_with_sums), format_bytes(r.tensor_bytes_stored));
  if (r.ok) {
    text += screen.paint(Tint::kGreen, "ok") + fmt::format("  {}  ({}{})\n", path,
                                                           verify_level_name(r.level),
                                                           not_compared_text(r.not_compared));
  } else {
    text += screen.paint(Tint::kRed, "DAMAGED") +
            fmt::format("  {}  {}, {}\n", path,
                        counted(with_severity(r.findings, Severity::kError), "error"),
                        counted(with_severity(r.findings, Severity::kWarning), "warning"));
  }
  if (!r.format.empty())  // else nothing was opened
    text += screen.wrap(read + (r.sealed ? "; sealed" : ""), "  ");
  text += render_notes(lines, 100, screen);
  for (const VerifiedBeside& row : r.beside)
    text += fact_lines("beside", beside_line(row.beside) + ": " + beside_state(row), 2, screen);
  return text + render_notes(r.notes, 5, screen);
}

namespace {

/// What A puts before all names that only B has; "" where A does not have every one so.
std::string common_root(const std::vector<std::string_view>& only_a,
                        const std::vector<std::string_view>& only_b) {
  if (only_b.empty() || only_a.size() < only_b.size()) return {};
  const std::set<std::string_view> names(only_a.begin(), only_a.end());
  for (const std::string_view name : only_a) {
    if (!name.ends_with("." + std::string(only_b.front()))) continue;
    const std::string root(name.substr(0, name.size() - only_b.front().size()));
    const bool all = std::ranges::all_of(
        only_b, [&](std::string_view each) { return names.contains(root + std::string(each)); });
    if (all) return root.substr(0, root.size() - 1);
  }
  return {};
}

std::string type_of(const std::string& spec) { return spec.substr(0, spec.find(' ')); }

/// The one of two types that values are rounded to.
std::string narrower(const std::string& a, const std::string& b) {
  const auto one = dtype_from_torch_name(a), other = dtype_from_torch_name(b);
  return one && other && bits(*one) < bits(*other) ? a : b;
}

/// What to compare as, where tensors below `root` of one side have another type than the other
/// side's of the same names; "" where all agree.
std::string type_below(const DiffReport& r, const std::string& root, bool in_a) {
  std::map<std::string_view, std::string> types;
  const auto inner = in_a ? TensorDiff::What::kUnexpected : TensorDiff::What::kMissing;
  for (const TensorDiff& row : r.tensors)
    if (row.what == inner) types.emplace(row.name, type_of(in_a ? row.b : row.a));
  for (const TensorDiff& row : r.tensors) {
    if (row.what == inner || !row.name.starts_with(root + ".")) continue;
    const auto partner = types.find(std::string_view(row.name).substr(root.size() + 1));
    const std::string type = type_of(in_a ? row.a : row.b);
    if (partner != types.end() && type != partner->second) return narrower(type, partner->second);
  }
  return {};
}

/// What makes two checkpoints comparable that look different in every name or type.
std::string diff_hints(const DiffReport& r) {
  std::vector<std::string_view> only_a, only_b;
  std::size_t types = 0;
  std::string a_type, b_type;
  for (const TensorDiff& row : r.tensors) {
    if (row.what == TensorDiff::What::kMissing) only_a.push_back(row.name);
    if (row.what == TensorDiff::What::kUnexpected) only_b.push_back(row.name);
    if (row.what != TensorDiff::What::kDType) continue;
    ++types;
    a_type = type_of(row.a);
    b_type = type_of(row.b);
  }
  std::string text;
  const auto add = [&](const std::string& root, std::size_t names, char side, char other) {
    if (root.empty()) return;
    const std::string type = type_below(r, root, side == 'A');
    text += fmt::format("hint: all {} of {} alone are in {} below \"{}\"{}: --root-{} {}{}\n",
                        counted(names, "name"), other, side, printable(root),
                        type.empty() ? "" : ", of another type", side == 'A' ? "a" : "b",
                        printable(root), type.empty() ? "" : " --as " + type);
  };
  add(common_root(only_a, only_b), only_b.size(), 'A', 'B');
  if (text.empty()) add(common_root(only_b, only_a), only_a.size(), 'B', 'A');
  if (types > 0)
    text += fmt::format("hint: {} of another type, as {} and {}: --as {} compares them rounded\n",
                        counted(types, "tensor"), a_type, b_type, narrower(a_type, b_type));
  return text;
}

}  // namespace

std::string render_diff(const DiffReport& r, const std::vector<LayerDiff>* layers,
                        std::size_t limit, const Screen& screen) {
  std::string text = layers != nullptr ? layer_differences(*layers, limit, screen)
                                       : tensor_differences(r, limit, screen);
  text += value_differences(r, limit, screen);
  const std::string counts =
      fmt::format("{} of {} equal, {} compared, {} read{}", count_text(r.tensors_equal),
                  counted(r.tensors_compared, "tensor"), counted(r.values_compared, "value"),
                  format_bytes(r.bytes), not_compared_text(r.not_compared));
  if (r.equal) {
    text += name_and_facts("equal", counts, screen, Tint::kGreen);
  } else {
    text += name_and_facts(
        "DIFFERENT",
        fmt::format("{}; {} and {} differ", counts, counted(r.tensors.size(), "tensor"),
                    counted(r.values.size(), "value")),
        screen, Tint::kRed);
  }
  return text + diff_hints(r) + render_notes(r.notes, 5, screen);
}

}  // namespace tessera::tools
