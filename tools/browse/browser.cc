// What keys do. (browser_picture.cc: what is shown.)
#include "tools/browse/browser.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>

#include "tools/browse/help.h"
#include "tools/render/number_text.h"
#include "tools/render/render.h"

namespace tessera::tools {
namespace {

/// Elements are compared so many bytes, or tensors, at a time: what differs shows as it is found, and
/// a page that is opened meanwhile waits for one batch.
constexpr std::uint64_t kBatchBytes = std::uint64_t{64} << 20;
constexpr std::size_t kBatchTensors = 256;

/// The letter that was typed, or 0.
char letter_of(const KeyPress& key) {
  return key.key == Key::kText && key.text.size() == 1 ? key.text[0] : '\0';
}

}  // namespace

Browser::Browser(BrowseList list, BrowseTitle title)
    : list_(std::move(list)), title_(std::move(title)), tree_(list_) {}

void Browser::resize(int width, int height) {
  if (width == width_ && height == height_) return;
  width_ = width;
  height_ = height;
  text_.set_height(body_height());
  if (page_) page_->set_room(width_, body_height());
  if (view_ == View::kText) text_title_ == kHelpTitle ? show_help() : show_summary();
  fit();
}

/// Keeps the cursor's line on the screen.
void Browser::fit() {
  const auto at = static_cast<std::int64_t>(tree_.cursor());
  const auto last = static_cast<std::int64_t>(tree_.rows().size()) - body_height();
  top_ = std::clamp(top_, at - body_height() + 1, at);
  top_ = std::clamp<std::int64_t>(top_, 0, std::max<std::int64_t>(0, last));
}

void Browser::press(const KeyPress& key) {
  message_.clear();
  if (prompt_ != 0)
    press_in_prompt(key);
  else if (letter_of(key) == 'Q')
    done_ = true;
  else if (view_ == View::kTree)
    press_in_tree(key);
  else if (view_ == View::kTensor)
    press_in_tensor(key);
  else if (!press_in_text(text_, key))
    view_ = below_text_;
  fit();
}

void Browser::press_in_prompt(const KeyPress& key) {
  if (key.key == Key::kText) {
    typed_ += key.text;
  } else if (key.key == Key::kBackspace && !typed_.empty()) {
    do {  // a character of several bytes goes as a whole
      const bool is_rest = (static_cast<unsigned char>(typed_.back()) & 0xC0) == 0x80;
      typed_.pop_back();
      if (!is_rest) break;
    } while (!typed_.empty());
  } else if (key.key == Key::kEscape || key.key == Key::kBackspace) {
    prompt_ = 0;
  } else if (key.key == Key::kEnter) {
    const char what = std::exchange(prompt_, '\0');
    if (what == ':') {
      if (page_ && !page_->grid().go_to(typed_))
        message_ = fmt::format("no element {}", printable(typed_));
      return;
    }
    if (!typed_.empty()) pattern_ = typed_;
    search(what == '/');
  }
}

void Browser::start_search(bool again, bool forward) {
  if (again) return search(forward);
  prompt_ = forward ? '/' : '?';
  typed_.clear();
}

void Browser::say(TreeView::Found found) {
  if (found == TreeView::Found::kWrapped) message_ = "on from the other end";
  if (found == TreeView::Found::kNone) message_ = "nothing found";
}

void Browser::search(bool forward) {
  if (pattern_.empty()) {
    message_ = "nothing was searched for yet: / asks";
  } else if (view_ == View::kTree) {
    const TreeView::Found found = tree_.search(pattern_, forward);
    say(found);
    if (found == TreeView::Found::kNone)
      message_ = fmt::format("no name here holds \"{}\"", printable(pattern_));
  } else {
    TextView& text = view_ == View::kTensor ? page_->text() : text_;
    if (!text.search(pattern_, forward))
      message_ = fmt::format("no line holds \"{}\"", printable(pattern_));
  }
}

void Browser::press_in_tree(const KeyPress& key) {
  const std::int64_t page = std::max(1, body_height() - 1);
  constexpr std::int64_t kAll = std::int64_t{1} << 40;
  switch (key.key) {
    case Key::kUp:
      return tree_.move(-1);
    case Key::kDown:
      return tree_.move(1);
    case Key::kPageUp:
      return tree_.move(-page);
    case Key::kPageDown:
      return tree_.move(page);
    case Key::kHome:
      return tree_.move(-kAll);
    case Key::kEnd:
      return tree_.move(kAll);
    case Key::kRight:
    case Key::kEnter:
      if (tree_.rows().empty()) return;
      if (tree_.is_leaf(tree_.node())) return open_tensor(tree_.item());
      return key.key == Key::kEnter ? tree_.enter() : tree_.open();
    case Key::kLeft:
      return tree_.close();
    case Key::kBackspace:
      return tree_.leave();
    case Key::kEscape:
      return stop_reading();
    case Key::kText:
      return tree_letter(letter_of(key));
    default:
      return;
  }
}

void Browser::tree_letter(char letter) {
  switch (letter) {
    case 'q':
      done_ = true;
      return;
    case 'k':
      return tree_.move(-1);
    case 'j':
      return tree_.move(1);
    case 'b':
      return press_in_tree({Key::kPageUp});
    case ' ':
    case 'f':
      return press_in_tree({Key::kPageDown});
    case 'g':
      return press_in_tree({Key::kHome});
    case 'G':
      return press_in_tree({Key::kEnd});
    case 'l':
      return press_in_tree({Key::kRight});
    case 'h':
      return tree_.close();
    case 'u':
      return tree_.leave();
    case 'e':
      return tree_.open_all();
    case 'E':
      return tree_.close_all();
    case 'a':
      return tree_.sort(TreeOrder::kName);
    case 's':
      return tree_.sort(TreeOrder::kSize);
    case 'c':
      return tree_.sort(TreeOrder::kCount);
    case 'o':
      return tree_.sort(TreeOrder::kStored);
    case 'm':
      return tree_.toggle_mark();
    case 'M':
      return tree_.clear_marks();
    case '\'':
      return say(tree_.next_mark());
    case '/':
      return start_search(false, true);
    case 'n':
      return start_search(true, true);
    case 'N':
      return start_search(true, false);
    case '?':
      return show_help();
    case 'i':
      return show_summary();
    default:
      break;
  }
  if (!list_.has_two()) return;
  if (letter == '=') return compare();
  if (letter == 'd' || letter == 'D') return say(tree_.next_difference(letter == 'd'));
  if (letter == 'r') return tree_.sort(TreeOrder::kChange);
  if (letter == 'x') {
    if (!tree_.shows_differing() && list_.differing(ModuleTree::kRoot) == 0)
      message_ = "nothing is known to differ: = compares elements";
    else
      tree_.show_differing(!tree_.shows_differing());
  }
}

/// false: the text is left.
bool Browser::press_in_text(TextView& text, const KeyPress& key) {
  const std::int64_t page = std::max(1, body_height() - 1);
  constexpr std::int64_t kAll = std::int64_t{1} << 40;
  const char letter = letter_of(key);
  if (key.key == Key::kDown || key.key == Key::kEnter || letter == 'j')
    text.step(1);
  else if (key.key == Key::kUp || letter == 'k')
    text.step(-1);
  else if (key.key == Key::kPageDown || letter == ' ' || letter == 'f')
    text.scroll(page);
  else if (key.key == Key::kPageUp || letter == 'b')
    text.scroll(-page);
  else if (key.key == Key::kHome || letter == 'g')
    text.scroll(-kAll);
  else if (key.key == Key::kEnd || letter == 'G')
    text.scroll(kAll);
  else if (letter == '/')
    start_search(false, true);
  else if (letter == 'n' || letter == 'N')
    start_search(true, letter == 'n');
  else
    return !(letter == 'q' || letter == 'h' || letter == '?' || key.key == Key::kLeft ||
             key.key == Key::kEscape || key.key == Key::kBackspace);
  return true;
}

void Browser::press_in_tensor(const KeyPress& key) {
  const bool values = page_->tab() == TensorTab::kValues;
  const int tab = static_cast<int>(page_->tab());
  const char letter = letter_of(key);
  if (key.key == Key::kEscape || key.key == Key::kBackspace || letter == 'q') return leave_tensor();
  if (key.key == Key::kTab || key.key == Key::kBackTab) {
    const int by = key.key == Key::kTab ? 1 : kTensorTabs - 1;
    return page_->show(static_cast<TensorTab>((tab + by) % kTensorTabs));
  }
  if (letter >= '1' && letter < '1' + kTensorTabs)
    return page_->show(static_cast<TensorTab>(letter - '1'));
  if (letter == '?') return show_help();
  if (letter == 'r') return page_->read_anyway();
  if (letter == 'L') return page_->toggle_logarithmic();
  if (letter == '=' && list_.has_two()) return compare();
  if (letter == 'm') {
    message_ = "marks are set in the tree";
    return;
  }
  if (values) return press_in_values(key);
  if (const std::uint32_t* other = page_->text().link();
      other != nullptr && (key.key == Key::kEnter || key.key == Key::kRight || letter == 'l')) {
    pages_before_.push_back(page_->item());
    return open_tensor(*other);
  }
  if (!press_in_text(page_->text(), key)) leave_tensor();
}

void Browser::press_in_values(const KeyPress& key) {
  ValueGrid& grid = page_->grid();
  const char letter = letter_of(key);
  const std::int64_t columns = std::max<std::int64_t>(1, grid.window().columns);
  if (key.key == Key::kDown || letter == 'j')
    grid.move(1, 0);
  else if (key.key == Key::kUp || letter == 'k')
    grid.move(-1, 0);
  else if (key.key == Key::kRight || letter == 'l')
    grid.move(0, 1);
  else if (key.key == Key::kLeft || letter == 'h')
    grid.move(0, -1);
  else if (letter == '>' || letter == '<')
    grid.move(0, letter == '>' ? columns : -columns);
  else if (key.key == Key::kPageDown || letter == ' ' || letter == 'f')
    grid.page(1);
  else if (key.key == Key::kPageUp || letter == 'b')
    grid.page(-1);
  else if (key.key == Key::kHome || key.key == Key::kEnd)
    grid.to_row_end(key.key == Key::kEnd);
  else if (letter == 'g' || letter == 'G')
    grid.to_column_end(letter == 'G');
  else if (letter == ']' || letter == '[')
    grid.plane(letter == ']' ? 1 : -1);
  else if (letter == ':')
    prompt_ = ':', typed_.clear();
}

void Browser::open_tensor(std::uint32_t item) {
  if (item == BrowseItem::kAbsent) return;
  page_.emplace(list_, item);
  page_->set_room(width_, body_height());
  const auto known = found_.find(item);
  if (known != found_.end()) page_->set_difference(known->second);
  view_ = View::kTensor;
}

void Browser::leave_tensor() {
  // What a page was reading, nobody looks at any more; comparing goes on.
  stop_.page = true;
  std::erase_if(wants_, [](const Want& want) { return want.what != Need::kCompare; });
  if (!pages_before_.empty()) {
    const std::uint32_t before = pages_before_.back();
    pages_before_.pop_back();
    open_tensor(before);
    return page_->show(TensorTab::kOptimizer);
  }
  page_.reset();
  view_ = View::kTree;
}

void Browser::show_text(std::string title, Picture lines) {
  if (view_ != View::kText) below_text_ = view_;
  if (view_ != View::kText || text_title_ != title) text_ = TextView();
  view_ = View::kText;
  text_title_ = std::move(title);
  text_.set_height(body_height());
  text_.set(std::move(lines));
}

void Browser::show_help() { show_text(kHelpTitle, help_lines(list_.has_two(), width_)); }

void Browser::show_summary() {
  if (!summary_) {
    wants_.push_back({Need::kSummary});
    return show_text(kSummaryTitle, lines_of("reading ..."));
  }
  if (!summary_->failure.empty())
    return show_text(kSummaryTitle, lines_of(wrap(printable(summary_->failure), width_, "")));
  Screen screen;
  screen.width = std::max(40, width_);
  std::string text;
  for (const auto& side : summary_->summaries) {
    if (!side) continue;
    text += render_summary(side->summary, false, screen);
    text += fmt::format("\n{}\n", counted(side->values.size(), "value"));
    for (const auto& [name, value] : side->values)
      text += fact_lines(printable(name), value_text(value), 2, screen);
    text += "\n";
  }
  show_text(kSummaryTitle, lines_of(text));
}

void Browser::compare() {
  const std::uint32_t node = view_ == View::kTensor ? list_.node_of(page_->item()) : tree_.node();
  if (node == ModuleTree::kNone) return;
  if (comparing_) {
    message_ = "elements are being compared: Esc in the tree stops it";
    return;
  }
  std::vector<std::vector<std::uint32_t>> batches;
  std::uint64_t bytes = kBatchBytes;
  compared_ = compared_of_ = 0;
  for (const std::uint32_t item : tree_.items_below(node)) {
    if (list_.difference(item) != Difference::kUnknown) continue;
    if (bytes >= kBatchBytes || batches.back().size() >= kBatchTensors) {
      batches.emplace_back();
      bytes = 0;
    }
    batches.back().push_back(item);
    bytes += list_.items()[item].bytes;
    ++compared_of_;
  }
  if (batches.empty()) {
    message_ = "everything here was compared";
    return;
  }
  std::ranges::reverse(batches);
  to_compare_ = std::move(batches);
}

void Browser::stop_reading() {
  if (!comparing_ && to_compare_.empty()) return;
  to_compare_.clear();
  stop_.compare = true;
  message_ = fmt::format("stopped: {} of {} tensors were compared", compared_, compared_of_);
}

std::vector<Want> Browser::take_wants() {
  std::vector<Want> wants = std::exchange(wants_, {});
  if (page_)
    for (Want& want : page_->wants()) wants.push_back(std::move(want));
  if (!comparing_ && !to_compare_.empty()) {
    Want want{Need::kCompare};
    want.items = std::move(to_compare_.back());
    to_compare_.pop_back();
    comparing_ = true;
    wants.push_back(std::move(want));
  }
  return wants;
}

void Browser::deliver(Answer answer) {
  if (answer.want.what == Need::kCompare) return take_compared(answer);
  if (answer.want.what == Need::kSummary) {
    if (answer.stopped) return;
    summary_ = std::move(answer);
    if (view_ == View::kText && text_title_ == kSummaryTitle) show_summary();
    return;
  }
  if (page_) page_->deliver(std::move(answer));
}

void Browser::take_compared(const Answer& answer) {
  comparing_ = false;
  if (answer.stopped) return;
  if (!answer.failure.empty()) {
    to_compare_.clear();
    message_ = printable(answer.failure);
    return;
  }
  for (const TensorDiff& diff : answer.difference.tensors) {
    const std::uint32_t item = list_.find(diff.name);
    if (item == BrowseItem::kAbsent) continue;
    const bool values = diff.what == TensorDiff::What::kValues;
    list_.set_difference(item, values ? Difference::kValues : Difference::kForm, diff.relative_l2);
    found_.insert_or_assign(item, diff);
  }
  for (const std::uint32_t item : answer.want.items)
    if (list_.difference(item) == Difference::kUnknown)
      list_.set_difference(item, Difference::kEqual, 0);
  compared_ += answer.want.items.size();
  if (to_compare_.empty())
    message_ = fmt::format("{} compared, {} in all differ", counted(compared_of_, "tensor"),
                           count_text(list_.differing(ModuleTree::kRoot)));
  if (page_) {
    const auto known = found_.find(page_->item());
    page_->set_difference(known == found_.end() ? std::nullopt : std::optional(known->second));
  }
  tree_.refresh();
  fit();
}

}  // namespace tessera::tools
