// What the browser shows: a title, the body, a status line.
#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <cmath>

#include "tools/browse/browser.h"
#include "tools/render/number_text.h"

namespace tessera::tools {
namespace {

constexpr int kLeastWidth = 40, kLeastHeight = 8;
constexpr int kSizeWidth = 9, kBarWidth = 8;

std::string spaces(int count) {
  return std::string(static_cast<std::size_t>(std::max(0, count)), ' ');
}

Tint tint_of(Difference difference) {
  switch (difference) {
    case Difference::kUnknown:
      return Tint::kPlain;
    case Difference::kEqual:
      return Tint::kGreen;
    case Difference::kValues:
    case Difference::kForm:
      return Tint::kYellow;
    case Difference::kOnlyA:
    case Difference::kOnlyB:
      return Tint::kRed;
  }
  return Tint::kPlain;
}

}  // namespace

PictureLine Browser::tree_line(const TreeView::Row& row, bool is_cursor) const {
  const ModuleTree& tree = list_.tree();
  const ModuleTree::Node& node = tree[row.node];
  const bool leaf = node.children.empty();
  PictureLine line;
  line.emplace_back(tree_.is_marked(row.node) ? "*" : " ", Tint::kYellow);
  if (list_.has_two()) {
    const Difference difference = list_.below(row.node);
    line.emplace_back(std::string(difference_mark(difference)), tint_of(difference));
  }
  line.emplace_back(pad_left(format_bytes(node.bytes), kSizeWidth) + " ");
  const std::uint64_t all = std::max<std::uint64_t>(1, tree[tree_.root()].bytes);
  line.emplace_back(
      pad_right(bar(static_cast<double>(node.bytes) / static_cast<double>(all), kBarWidth),
                kBarWidth) +
          " ",
      Tint::kCyan);
  std::string label = printable(tree_.label(row));
  if (label.empty()) label = "(empty)";
  const std::string sign = leaf ? "  " : tree_.is_open(row.node) ? "▾ " : "▸ ";
  line.emplace_back(spaces(2 * row.depth) + sign);
  PictureLine right;
  if (const double change = list_.change(row.node); change > 0 && std::isfinite(change))
    right.emplace_back(fmt::format("change {}  ", real_text(change, 3)), Tint::kYellow);
  std::string facts = leaf ? tree.form_text(row.node) : counted(node.tensors, "tensor");
  if (node.alike > 0)
    facts = fmt::format("{} alike of {}", node.alike, format_bytes(node.bytes / node.alike));
  right.emplace_back(facts, Tint::kDim);
  // A long name gives up its middle before the facts go.
  const int room = width_ - width_of(line) - width_of(right) - 1;
  const int whole = display_width(label);
  line.emplace_back(room >= std::min(whole, 24) ? clip_middle(label, std::max(room, 1)) : label,
                    leaf ? Tint::kPlain : Tint::kBold);
  line = justified(std::move(line), right, width_);
  return is_cursor ? inverted(std::move(line), width_) : line;
}

Picture Browser::tree_body() const {
  const std::vector<TreeView::Row>& rows = tree_.rows();
  if (rows.empty()) return {{Span(tree_.shows_differing() ? "Nothing differs." : "No tensors.")}};
  Picture picture;
  for (auto i = static_cast<std::size_t>(top_);
       i < rows.size() && picture.size() < static_cast<std::size_t>(body_height()); ++i)
    picture.push_back(tree_line(rows[i], i == tree_.cursor()));
  return picture;
}

PictureLine Browser::title_line() const {
  std::string left = " ";
  std::string right = "? help ";
  if (view_ == View::kTensor) {
    left += printable(list_.items()[page_->item()].name.view());
    right.clear();
    for (int tab = 0; tab < kTensorTabs; ++tab) {
      const bool open = static_cast<int>(page_->tab()) == tab;
      const std::string_view name = tab_name(static_cast<TensorTab>(tab));
      right += open ? fmt::format("[{} {}]", tab + 1, name) : fmt::format(" {} {} ", tab + 1, name);
    }
  } else {
    if (view_ == View::kText) right = text_title_ + " ";
    const int both = width_ - display_width(right) - 2;
    if (title_.b.empty())
      left += printable(title_.a);
    else  // each its half
      left += fmt::format("{} | {}", clip_middle(printable(title_.a), (both - 3) / 2),
                          clip_middle(printable(title_.b), (both - 3) / 2));
  }
  const int room = width_ - display_width(right) - 1;
  PictureLine line = justified({Span(clip_middle(left, std::max(1, room)))}, {Span(right)}, width_);
  return inverted(std::move(line), width_);
}

std::string Browser::whereabouts() const {
  if (view_ == View::kText) return text_.position();
  if (view_ == View::kTensor) return page_->position();
  if (tree_.rows().empty()) return {};
  return fmt::format("{} of {}", tree_.cursor() + 1, tree_.rows().size());
}

PictureLine Browser::status_line() const {
  if (prompt_ != 0) return {Span(fmt::format("{}{}_", prompt_, printable(typed_)))};
  std::string left = message_;
  if (left.empty() && view_ == View::kTree) {
    const TreeView::Marks marks = tree_.marks();
    left = printable(list_.tree().full_name(tree_.rows().empty() ? tree_.root() : tree_.node()));
    std::string right =
        fmt::format("by {}{}", order_name(tree_.order()), tree_.is_reversed() ? ", reversed" : "");
    if (marks.lines > 0)
      right =
          fmt::format("{} marked, {}", counted(marks.tensors, "tensor"), format_bytes(marks.bytes));
    if (comparing_) right = fmt::format("comparing {} of {} tensors", compared_, compared_of_);
    right += "  " + whereabouts();
    const int room = width_ - display_width(right) - 1;
    return justified({Span(clip_middle(left, std::max(1, room)), Tint::kDim)}, {Span(right)},
                     width_);
  }
  std::string right = whereabouts();
  if (progress_ && progress_->second > 0)
    right = fmt::format("read {} of {}  {}", format_bytes(progress_->first),
                        format_bytes(progress_->second), right);
  return justified({Span(left.empty() ? "q back  Tab next part  ? help" : left, Tint::kDim)},
                   {Span(right)}, width_);
}

Picture Browser::picture() const {
  if (width_ < kLeastWidth || height_ < kLeastHeight) {
    Picture small(static_cast<std::size_t>(std::max(0, height_)), fitted({}, width_));
    if (!small.empty())
      small[0] = fitted(
          {Span(fmt::format("too small: {} x {} at least", kLeastWidth, kLeastHeight))}, width_);
    return small;
  }
  Picture picture{title_line()};
  Picture body = view_ == View::kTree     ? tree_body()
                 : view_ == View::kTensor ? page_->body()
                                          : text_.visible();
  body.resize(static_cast<std::size_t>(body_height()));
  for (PictureLine& line : body) picture.push_back(fitted(std::move(line), width_));
  picture.push_back(fitted(status_line(), width_));
  return picture;
}

}  // namespace tessera::tools
