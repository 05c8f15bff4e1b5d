#include "tools/report/svg.h"

#include <fmt/format.h>
#include <tessera/base/text.h>
#include <tessera/ops/open.h>
#include <tessera/state/listed_tensors.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>

#include "tools/render/module_tree.h"
#include "tools/render/number_text.h"
#include "tools/render/screen.h"

namespace tessera::tools {
namespace {

std::string xml(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

/// Elements between the root's tags.
class Drawing {
 public:
  Drawing(double width, double height) : width_(width), height_(height) {}
  void box(double x, double y, double width, double height, std::string_view fill,
           std::string_view title) {
    body_ += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"><title>{}"
        "</title></rect>\n",
        x, y, std::max(0.0, width), std::max(0.0, height), fill, xml(title));
  }
  /// `more`: attributes.
  void text(double x, double y, std::string_view text, std::string_view more = "") {
    body_ += fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\"{}{}>{}</text>\n", x, y,
                         more.empty() ? "" : " ", more, xml(text));
  }
  void line(double x1, double y1, double x2, double y2) {
    body_ += fmt::format(
        "<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" stroke=\"#888888\"/>\n", x1,
        y1, x2, y2);
  }
  std::string svg(std::string_view title) const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
        "width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" font-family=\"sans-serif\" font-size=\"11\" role=\"img\">\n<title>{2}"
        "</title>\n<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#ffffff\"/>\n{3}</svg>\n",
        width_, height_, xml(title), body_);
  }

 private:
  double width_, height_;
  std::string body_;
};

struct Rect {
  double x, y, width, height;
};

/// The largest ratio of sides in a row of `areas`, laid along `side`.
double worst_ratio(std::span<const double> areas, double side) {
  double sum = 0, least = areas.front(), most = areas.front();
  for (const double area : areas) {
    sum += area;
    least = std::min(least, area);
    most = std::max(most, area);
  }
  return std::max(side * side * most / (sum * sum), sum * sum / (side * side * least));
}

/// Rectangles of these areas (descending, their sum the rectangle's) as near to squares as rows of them
/// get: Bruls, Huizing and van Wijk's squarified treemap.
std::vector<Rect> squarified(std::vector<double> areas, Rect room) {
  std::vector<Rect> out;
  for (std::size_t at = 0; at < areas.size();) {
    const double side = std::min(room.width, room.height);
    std::size_t end = at + 1;
    const auto row = [&](std::size_t to) { return std::span(areas).subspan(at, to - at); };
    while (end < areas.size() && worst_ratio(row(end + 1), side) <= worst_ratio(row(end), side))
      ++end;
    double sum = 0;
    for (const double area : row(end)) sum += area;
    const double thick = side > 0 ? sum / side : 0;
    double along = 0;
    for (const double area : row(end)) {
      const double length = thick > 0 ? area / thick : 0;
      out.push_back(room.width >= room.height ? Rect{room.x, room.y + along, thick, length}
                                              : Rect{room.x + along, room.y, length, thick});
      along += length;
    }
    if (room.width >= room.height)
      room.x += thick, room.width -= thick;
    else
      room.y += thick, room.height -= thick;
    at = end;
  }
  return out;
}

constexpr double kHeader = 15;  // of a module that is large enough to be named

std::string_view color_of(TensorKind kind) {
  constexpr std::array<std::pair<TensorKind, std::string_view>, 4> kColors = {
      {{TensorKind::kParam, "#3b6fb6"},
       {TensorKind::kBuffer, "#2a9d8f"},
       {TensorKind::kOptim, "#d08c2e"},
       {TensorKind::kMaster, "#8a5fbf"}}};
  for (const auto& [known, color] : kColors)
    if (known == kind) return color;
  return "#7b8494";
}

class Treemap {
 public:
  explicit Treemap(const Manifest& manifest)
      : manifest_(manifest), leaves_(listed_tensors(manifest)), drawing_(1000, 460) {
    for (const std::uint32_t leaf : leaves_) {
      const StoredTensor& t = manifest.tensors[leaf];
      tree_.add(t.name, t.spec.to_string(), static_cast<std::uint64_t>(t.spec.size_bytes()));
    }
    tree_.finish();
  }

  std::string svg(const std::string& title) {
    place(ModuleTree::kRoot, {0, 24, 1000, 400}, 1);
    drawing_.text(4, 15, clip_middle(title, 140), "font-size=\"13\"");
    double x = 4;
    for (const TensorKind kind : {TensorKind::kParam, TensorKind::kBuffer, TensorKind::kOptim,
                                  TensorKind::kMaster, TensorKind::kOther}) {
      if (std::ranges::none_of(leaves_, [&](auto t) { return manifest_.tensors[t].kind == kind; }))
        continue;
      drawing_.box(x, 434, 11, 11, color_of(kind), kind_name(kind));
      drawing_.text(x + 16, 444, kind_name(kind));
      x += 90;
    }
    return drawing_.svg(title);
  }

 private:
  /// `share`: how many times the bytes of `node` are shown, where it stands for others.
  void place(std::uint32_t node, Rect room, double share) {
    std::vector<std::pair<double, std::uint32_t>> parts;
    double all = 0;
    for (const std::uint32_t child : tree_[node].children) {
      const double bytes = static_cast<double>(tree_[child].bytes) * share;
      if (bytes > 0) parts.emplace_back(bytes, child), all += bytes;
    }
    std::ranges::stable_sort(parts, std::ranges::greater(), [](const auto& p) { return p.first; });
    std::vector<double> areas;
    for (const auto& [bytes, child] : parts)
      areas.push_back(bytes / all * room.width * room.height);
    const std::vector<Rect> rects = squarified(std::move(areas), room);
    for (std::size_t i = 0; i < parts.size(); ++i) box(parts[i].second, rects[i], parts[i].first);
  }

  void box(std::uint32_t child, Rect r, double bytes) {
    if (r.width < 1.5 || r.height < 1.5) return;
    const ModuleTree::Joined line = tree_.joined(child, /*through_folds=*/true);
    const ModuleTree::Node& shown = tree_[line.node];
    const std::string title = fmt::format(
        "{}: {}{}", tree_.full_name(child), format_bytes(static_cast<std::uint64_t>(bytes)),
        tree_[child].alike > 0 ? fmt::format(", {} alike", tree_[child].alike) : "");
    const bool leaf = shown.children.empty();
    drawing_.box(r.x, r.y, r.width - 1, r.height - 1,
                 leaf ? color_of(manifest_.tensors[leaves_[shown.item]].kind) : "#e8ebf0", title);
    const bool named = r.width > 40 && r.height > 16;
    if (named)
      drawing_.text(r.x + 4, r.y + 11.5,
                    clip_end(line.label, static_cast<int>((r.width - 6) / 6.2)),
                    leaf ? "fill=\"#ffffff\"" : "");
    if (leaf) return;
    const double top = named && r.height > 30 ? kHeader : 1;
    const Rect inner{r.x + 2, r.y + top, r.width - 5, r.height - top - 3};
    if (inner.width > 2 && inner.height > 2 && shown.bytes > 0)
      place(line.node, inner, bytes / static_cast<double>(shown.bytes));
  }

  const Manifest& manifest_;
  std::vector<std::uint32_t> leaves_;
  ModuleTree tree_;
  Drawing drawing_;
};

/// Viridis, between its ninths.
std::string viridis(double t) {
  constexpr std::array<std::array<int, 3>, 9> kStops = {{{68, 1, 84},
                                                         {71, 44, 122},
                                                         {59, 81, 139},
                                                         {44, 113, 142},
                                                         {33, 144, 141},
                                                         {39, 173, 129},
                                                         {92, 200, 99},
                                                         {170, 220, 50},
                                                         {253, 231, 37}}};
  const double at = std::clamp(t, 0.0, 1.0) * (kStops.size() - 1);
  const std::size_t low = std::min<std::size_t>(static_cast<std::size_t>(at), kStops.size() - 2);
  std::array<int, 3> c{};
  for (std::size_t i = 0; i < 3; ++i)
    c[i] = static_cast<int>(std::lround(
        kStops[low][i] + (at - static_cast<double>(low)) * (kStops[low + 1][i] - kStops[low][i])));
  return fmt::format("#{:02x}{:02x}{:02x}", c[0], c[1], c[2]);
}

/// As the page's heat maps have it.
std::pair<std::string, std::string> layer_and_module(const std::string& name) {
  std::size_t begin = 0;
  for (const std::string_view part : split(name, '.')) {
    const std::size_t end = begin + part.size();
    if (is_decimal(part))
      return {name.substr(0, end), end < name.size() ? name.substr(end + 1) : ""};
    begin = end + 1;
  }
  return {"other", name};
}

struct NaturalLess {
  bool operator()(const std::string& a, const std::string& b) const { return natural_less(a, b); }
};
using Places = std::map<std::string, std::size_t, NaturalLess>;

void number(Places& places) {
  std::size_t at = 0;
  for (auto& [name, place] : places) place = at++;
}

/// One histogram at (x, 30), 420 wide.
void draw_histogram(Drawing& drawing, double x, const Histogram& h) {
  constexpr double kWidth = 420, kTop = 40, kBottom = 220;
  const std::int64_t most = h.counts.empty() ? 0 : *std::ranges::max_element(h.counts);
  const auto edge = [&](double value) { return (h.logarithmic ? "1e" : "") + real_text(value); };
  const double step = kWidth / static_cast<double>(std::max<std::size_t>(1, h.counts.size()));
  const double bin =
      (h.high - h.low) / static_cast<double>(std::max<std::size_t>(1, h.counts.size()));
  for (std::size_t i = 0; i < h.counts.size(); ++i) {
    const double height =
        most == 0 ? 0
                  : (kBottom - kTop) * static_cast<double>(h.counts[i]) / static_cast<double>(most);
    const double low = h.low + static_cast<double>(i) * bin;
    drawing.box(x + static_cast<double>(i) * step, kBottom - height, step - 0.6, height, "#3b6fb6",
                fmt::format("{} to {}: {}", edge(low), edge(low + bin), h.counts[i]));
  }
  drawing.line(x, kBottom, x + kWidth, kBottom);
  drawing.text(x, kBottom + 15, edge(h.low));
  drawing.text(x + kWidth, kBottom + 15, edge(h.high), "text-anchor=\"end\"");
  drawing.text(
      x, kTop - 6,
      fmt::format("{}, at most {} in a bin{}", h.logarithmic ? "magnitudes" : "values",
                  count_text(static_cast<std::uint64_t>(most)),
                  h.logarithmic
                      ? fmt::format("; {} zeros", count_text(static_cast<std::uint64_t>(h.zeros)))
                      : ""));
}

}  // namespace

std::string svg_modules(const std::string& title, const Manifest& manifest) {
  return Treemap(manifest).svg(title);
}

std::string svg_heat_map(const std::string& title, const std::vector<HeatCell>& cells) {
  constexpr double kCell = 16, kLeft = 170, kTop = 130, kMostText = 26;
  Places layers, modules;
  double low = INFINITY, high = 0;
  for (const HeatCell& cell : cells) {
    const auto [layer, module] = layer_and_module(cell.name);
    layers[layer] = modules[module] = 0;
    if (!(cell.value > 0) || !std::isfinite(cell.value)) continue;
    low = std::min(low, cell.value);
    high = std::max(high, cell.value);
  }
  number(layers), number(modules);
  const double width = kLeft + kCell * static_cast<double>(modules.size()) + 100;
  const double height = kTop + kCell * static_cast<double>(layers.size()) + 40;
  Drawing drawing(std::max(width, 420.0), height);
  drawing.text(4, 15, clip_middle(title, static_cast<int>(std::max(width, 420.0) / 7)),
               "font-size=\"13\"");
  if (cells.empty()) drawing.text(4, 60, "Nothing differs.");
  for (const auto& [layer, at] : layers)
    drawing.text(kLeft - 6, kTop + kCell * (static_cast<double>(at) + 0.75),
                 clip_middle(layer, kMostText), "text-anchor=\"end\"");
  for (const auto& [module, at] : modules) {
    const double x = kLeft + kCell * (static_cast<double>(at) + 0.7);
    drawing.text(x, kTop - 6, clip_middle(module, kMostText),
                 fmt::format("transform=\"rotate(-45 {:.2f} {:.2f})\"", x, kTop - 6));
  }
  const double span = high > low ? std::log(high / low) : 1;
  for (const HeatCell& cell : cells) {
    const auto [layer, module] = layer_and_module(cell.name);
    const std::string fill = !std::isfinite(cell.value) ? "#b3261e"
                             : cell.value > 0           ? viridis(std::log(cell.value / low) / span)
                                                        : "#d5d9e0";
    drawing.box(kLeft + kCell * static_cast<double>(modules.at(module)),
                kTop + kCell * static_cast<double>(layers.at(layer)), kCell - 1, kCell - 1, fill,
                fmt::format("{}: {}", cell.name, real_text(cell.value)));
  }
  const double foot = height - 24;
  for (int i = 0; i < 64 && high > 0; ++i)
    drawing.box(kLeft + 2.0 * i, foot, 2, 10, viridis(i / 63.0), "");
  if (high > 0) {
    drawing.text(kLeft, foot + 21, real_text(low));
    drawing.text(kLeft + 128, foot + 21, real_text(high), "text-anchor=\"end\"");
  }
  return drawing.svg(title);
}

std::string svg_histogram(const TensorStat& stat) {
  const bool both = stat.histogram && stat.log_histogram;
  Drawing drawing(both ? 900 : 450, 250);
  const std::string title = fmt::format("{}  {} {}", stat.name, stat.dtype, shape_text(stat.shape));
  drawing.text(10, 18, title, "font-size=\"13\"");
  double x = 12;
  for (const auto* histogram : {&stat.histogram, &stat.log_histogram}) {
    if (!*histogram) continue;
    draw_histogram(drawing, x, **histogram);
    x += 450;
  }
  return drawing.svg(title);
}

}  // namespace tessera::tools
