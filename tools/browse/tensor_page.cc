#include "tools/browse/tensor_page.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>

#include "tools/render/number_text.h"
#include "tools/render/render.h"

namespace tessera::tools {
namespace {

constexpr int kHistogramHeight = 8;
constexpr std::size_t kMostPieces = 100'000;

Screen paper(int width) {
  Screen screen;
  screen.width = std::max(20, width);
  return screen;
}

int width_of(const Picture& picture) {
  int width = 0;
  for (const PictureLine& line : picture) width = std::max(width, width_of(line));
  return width;
}

/// Next to each other where they fit, else below each other.
Picture beside(Picture a, Picture b, int width) {
  const int half = (width - 3) / 2;
  if (width_of(a) > half || width_of(b) > half) {
    a.push_back({Span("")});
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  Picture out;
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    PictureLine line = fitted(i < a.size() ? a[i] : PictureLine{}, half);
    line.emplace_back(" │ ", Tint::kDim);
    const PictureLine right = fitted(i < b.size() ? b[i] : PictureLine{}, half);
    line.insert(line.end(), right.begin(), right.end());
    out.push_back(std::move(line));
  }
  return out;
}

Picture titled(std::string title, Picture lines) {
  lines.insert(lines.begin(), PictureLine{Span(std::move(title), Tint::kBold)});
  return lines;
}

Picture bars_of(const Histogram& histogram, int width) {
  const auto columns = static_cast<std::size_t>(std::max(8, width - 2));
  const std::vector<std::int64_t> counts =
      histogram.counts.size() > columns ? rebinned(histogram.counts, columns) : histogram.counts;
  Picture picture;
  for (const std::string& line : histogram_lines(counts, kHistogramHeight))
    picture.push_back({Span("  "), Span(line, Tint::kCyan)});
  const std::string prefix = histogram.logarithmic ? "1e" : "";
  const std::string low = prefix + real_text(histogram.low),
                    high = prefix + real_text(histogram.high);
  const int wide =
      std::max(static_cast<int>(counts.size()), display_width(low) + display_width(high) + 1);
  picture.push_back({Span("  " + low + pad_left(high, wide - display_width(low)), Tint::kDim)});
  const std::int64_t most = counts.empty() ? 0 : *std::ranges::max_element(counts);
  std::string note = fmt::format("  {} bins, at most {}", counts.size(),
                                 count_text(static_cast<std::uint64_t>(most)));
  if (histogram.logarithmic)
    note +=
        fmt::format("; {} zeros apart", count_text(static_cast<std::uint64_t>(histogram.zeros)));
  picture.push_back({Span(std::move(note), Tint::kDim)});
  return picture;
}

void append(Picture& to, Picture from) { to.insert(to.end(), from.begin(), from.end()); }

}  // namespace

std::string_view tab_name(TensorTab tab) {
  constexpr std::string_view kNames[] = {"facts", "histogram", "values", "pieces", "optimizer"};
  return kNames[static_cast<std::size_t>(tab)];
}

TensorPage::TensorPage(const BrowseList& list, std::uint32_t item) : list_(list), item_(item) {
  remake();
}

void TensorPage::show(TensorTab tab) {
  tab_ = tab;
  text_ = TextView();
  text_.set_height(height_);
  remake();
}

void TensorPage::set_room(int width, int height) {
  width_ = width;
  height_ = height;
  text_.set_height(height);
  grid_.set_room(list_.has_two() ? (width - 3) / 2 : width, height);
  remake();
}

std::vector<Want> TensorPage::wants() {
  std::vector<Want> wants;
  const auto want = [&](Need need) {
    if (!asked_.insert(need).second) return;
    wants.push_back({need, item_});
    wants.back().with_numbers = may_read();
  };
  want(Need::kFacts);
  if (tab_ == TensorTab::kHistogram && may_read()) want(Need::kNumbers);
  if (tab_ == TensorTab::kOptimizer) want(Need::kOptimizer);
  const bool has_shape = answers_.contains(Need::kFacts);
  if (tab_ == TensorTab::kValues && has_shape && !grid_.is_empty() &&
      asked_window_ != grid_.window()) {
    asked_window_ = grid_.window();
    wants.push_back({Need::kValues, item_, grid_.window()});
  }
  return wants;
}

void TensorPage::deliver(Answer answer) {
  if (answer.want.item != item_) return;
  const Need need = answer.want.what;
  if (answer.stopped) {
    asked_.erase(need);
    if (need == Need::kValues) asked_window_.reset();
    return;
  }
  if (need == Need::kFacts)
    for (const auto& shown : {answer.shown[1], answer.shown[0]})  // A's, where both have it
      if (shown) grid_.set_shape(shown->tensor.shape);
  if (need == Need::kValues) {
    if (answer.want.window != grid_.window()) return;  // of where one was before
    int widest = 0;
    for (const auto& shown : answer.shown)
      if (shown)
        for (const std::string& value : shown->values)
          widest = std::max(widest, display_width(value));
    answers_.insert_or_assign(need, std::move(answer));
    // Narrow elements leave room for more; wider ones further on must not make it jump back.
    if (widest > 0 && (widest > grid_.cell_width() || grid_.cell_width() == 12))
      grid_.set_cell(widest);
    return;
  }
  answers_.insert_or_assign(need, std::move(answer));
  remake();
}

void TensorPage::set_difference(std::optional<TensorDiff> difference) {
  difference_ = std::move(difference);
  remake();
}

void TensorPage::read_anyway() {
  anyway_ = true;
  const auto found = answers_.find(Need::kOptimizer);
  if (found != answers_.end() && !found->second.want.with_numbers) {
    answers_.erase(found);
    asked_.erase(Need::kOptimizer);
  }
  remake();
}

void TensorPage::toggle_logarithmic() {
  logarithmic_ = !logarithmic_;
  remake();
}

/// What stands where an answer is not there, or says why there is none; "" where there is one.
std::string TensorPage::waiting(Need need) const {
  const auto found = answers_.find(need);
  if (found != answers_.end()) return printable(found->second.failure);
  if (need == Need::kNumbers && !may_read())
    return fmt::format("The tensor has {}: r reads it.", format_bytes(it().bytes));
  return "reading ...";
}

Picture TensorPage::difference_lines() const {
  if (!list_.has_two()) return {};
  std::string text;
  switch (list_.difference(item_)) {
    case Difference::kUnknown:
      text = "Type and shape are the same in both; = compares the elements.";
      break;
    case Difference::kEqual:
      text = "Equal in both, element by element.";
      break;
    case Difference::kOnlyA:
      text = "Only in the first checkpoint.";
      break;
    case Difference::kOnlyB:
      text = "Only in the second checkpoint.";
      break;
    case Difference::kForm:
    case Difference::kValues:
      text = "It differs.";
      break;
  }
  if (difference_ && difference_->what == TensorDiff::What::kValues)
    text = fmt::format(
        "{} of {} elements differ, at most by {}; relative {}, cosine {}; the first at {}: {} / {}",
        count_text(static_cast<std::uint64_t>(difference_->count)),
        count_text(static_cast<std::uint64_t>(difference_->numel)), real_text(difference_->max_abs),
        real_text(difference_->relative_l2), real_text(difference_->cosine, 6),
        index_text(difference_->first_index), printable(difference_->first_a),
        printable(difference_->first_b));
  else if (difference_)
    text = fmt::format("It differs: {} / {}", printable(difference_->a), printable(difference_->b));
  Picture lines = lines_of(wrap(text, width_, ""));
  for (PictureLine& line : lines) line[0].tint = Tint::kYellow;
  lines.push_back({Span("")});
  return lines;
}

Picture TensorPage::facts_of(std::size_t side, int width) const {
  const auto& shown = answers_.at(Need::kFacts).shown[side];
  return shown ? lines_of(show_facts(*shown, paper(width))) : lines_of("not there");
}

Picture TensorPage::histogram_of(std::size_t side, int width) const {
  const auto& numbers = answers_.at(Need::kNumbers).numbers[side];
  if (!numbers || numbers->tensors.empty()) return lines_of("not there");
  StatReport facts = *numbers;
  facts.tensors[0].histogram.reset();
  facts.tensors[0].log_histogram.reset();
  const Screen screen = paper(width);
  Picture picture = lines_of(stat_in_full(facts.tensors[0], facts.quantiles, screen) +
                             render_notes(facts.findings, 10, screen));
  const TensorStat& stat = numbers->tensors[0];
  const auto& histogram = logarithmic_ ? stat.log_histogram : stat.histogram;
  picture.push_back({Span("")});
  if (!histogram) return picture;
  picture.push_back(
      {Span(logarithmic_ ? "log10 of magnitudes (L: values)" : "values (L: magnitudes, log scale)",
            Tint::kBold)});
  append(picture, bars_of(*histogram, width));
  return picture;
}

Picture TensorPage::pieces_of(std::size_t side, int width) const {
  const auto& shown = answers_.at(Need::kFacts).shown[side];
  if (!shown) return lines_of("not there");
  Screen screen = paper(width);
  return lines_of(chunk_map(shown->tensor, screen) +
                  chunk_table(shown->tensor, kMostPieces, screen));
}

Picture TensorPage::optimizer_of(std::size_t side, int width, std::size_t before,
                                 std::map<std::size_t, std::uint32_t>& links) const {
  const auto& found = answers_.at(Need::kOptimizer).optimizer[side];
  if (!found) return lines_of("No optimizer here has state for it.");
  const Screen screen = paper(width);
  Picture picture = lines_of(fact_line("parameter", printable(found->fqn), screen) +
                             fact_line("optimizer",
                                       printable(fmt::format("{} at \"{}\", {}", found->kind,
                                                             found->root, found->dialect)),
                                       screen));
  std::string options = found->group < 0 ? "in none" : fmt::format("{}:", found->group);
  for (const auto& [name, value] : found->options) options += " " + name + " " + value;
  append(picture, lines_of(fact_lines("group", options, 4, screen)));
  if (found->update)
    append(picture,
           lines_of(fact_lines(
               "next update",
               fmt::format("{} of the weight: {} against {}, lr {}",
                           real_text(found->update->ratio), real_text(found->update->update_norm),
                           real_text(found->update->weight_norm), real_text(found->update->lr)),
               3, screen)));
  else if (!found->update_note.empty())
    append(picture, lines_of(fact_lines("next update", printable(found->update_note), 3, screen)));
  for (const StatePiece& piece : found->pieces) {
    picture.push_back({Span("")});
    const std::uint32_t other = piece.name.empty() ? BrowseItem::kAbsent : list_.find(piece.name);
    if (other != BrowseItem::kAbsent && other != item_) links[before + picture.size()] = other;
    picture.push_back({Span(pad_right(printable(piece.role), 12) + " ", Tint::kBold),
                       Span(printable(piece.form))});
    if (!piece.number || !piece.number->histogram) continue;
    const TensorStat& n = *piece.number;
    picture.push_back({Span(fmt::format("  min {}  mean {}  max {}  std {}  L2 {}",
                                        real_text(n.min), real_text(n.mean), real_text(n.max),
                                        real_text(n.std), real_text(n.l2)))});
    picture.push_back(
        {Span("  "), Span(sparkline(rebinned(n.histogram->counts, 32)), Tint::kCyan),
         n.nan + n.pos_inf + n.neg_inf > 0 ? Span("  holds NaN or Inf", Tint::kRed) : Span("")});
  }
  return picture;
}

Picture TensorPage::of_both(Picture (TensorPage::*of)(std::size_t side, int width) const,
                            Need need) const {
  if (std::string text = waiting(need); !text.empty()) return lines_of(wrap(text, width_, ""));
  if (!list_.has_two()) return (this->*of)(0, width_);
  const int half = (width_ - 3) / 2;
  return beside(titled("A", (this->*of)(0, half)), titled("B", (this->*of)(1, half)), width_);
}

void TensorPage::remake() {
  std::map<std::size_t, std::uint32_t> links;
  Picture lines = difference_lines();
  switch (tab_) {
    case TensorTab::kFacts:
      append(lines, of_both(&TensorPage::facts_of, Need::kFacts));
      break;
    case TensorTab::kHistogram:
      append(lines, of_both(&TensorPage::histogram_of, Need::kNumbers));
      break;
    case TensorTab::kPieces:
      append(lines, of_both(&TensorPage::pieces_of, Need::kFacts));
      break;
    case TensorTab::kOptimizer:
      if (std::string text = waiting(Need::kOptimizer); !text.empty()) {
        append(lines, lines_of(wrap(text, width_, "")));
        break;
      }
      for (std::size_t side = 0; side < (list_.has_two() ? 2U : 1U); ++side) {
        if (list_.has_two()) lines.push_back({Span(side == 0 ? "A" : "B", Tint::kBold)});
        append(lines, optimizer_of(side, width_, lines.size(), links));
      }
      if (!answers_.at(Need::kOptimizer).want.with_numbers)
        lines.push_back({Span("Numbers were not read: r reads them.", Tint::kDim)});
      break;
    case TensorTab::kValues:
      break;
  }
  text_.set(std::move(lines), std::move(links));
}

Picture TensorPage::values_body() const {
  if (std::string text = waiting(Need::kFacts); !text.empty()) return lines_of(text);
  if (grid_.is_empty()) return lines_of("It has no elements.");
  const auto found = answers_.find(Need::kValues);
  if (found == answers_.end()) return lines_of("reading ...");
  const Answer& answer = found->second;
  if (!answer.failure.empty()) return lines_of(wrap(printable(answer.failure), width_, ""));
  if (answer.want.window != grid_.window()) return lines_of("reading ...");
  const auto side = [&](std::size_t i, int width) {
    const ShowReport* other = answer.shown[1 - i] ? &*answer.shown[1 - i] : nullptr;
    return answer.shown[i] ? values_picture(grid_, *answer.shown[i], other, width)
                           : lines_of("not there in this shape");
  };
  if (!list_.has_two()) return side(0, width_);
  const int half = (width_ - 3) / 2;
  return beside(side(0, half), side(1, half), width_);
}

Picture TensorPage::body() const {
  return tab_ == TensorTab::kValues ? values_body() : text_.visible();
}

std::string TensorPage::position() const {
  if (tab_ != TensorTab::kValues) return text_.position();
  return answers_.contains(Need::kFacts) ? grid_.position() : "";
}

}  // namespace tessera::tools
