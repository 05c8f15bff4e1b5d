#pragma once
// Browser: the whole of `ckpt-inspect browse` but reading and drawing. Keys go in, a picture and
// wants come out, answers go in. Pure: tests play it without a terminal.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/browse/list.h"
#include "tools/browse/tensor_page.h"
#include "tools/browse/text_view.h"
#include "tools/browse/tree_view.h"
#include "tools/browse/want.h"

namespace tessera::tools {

enum class Key : std::uint8_t {
  kText,  // KeyPress::text
  kUp,
  kDown,
  kLeft,
  kRight,
  kPageUp,
  kPageDown,
  kHome,
  kEnd,
  kEnter,
  kEscape,
  kTab,
  kBackTab,
  kBackspace,
};
struct KeyPress {
  Key key = Key::kText;
  std::string text = {};
};

/// What is to be read no further.
struct Stop {
  bool page = false;     // of a tensor, or the summary
  bool compare = false;  // Need::kCompare
};

/// What the title says: the checkpoint's name and format, of both.
struct BrowseTitle {
  std::string a, b;  // b: "" of one
};

class Browser {
 public:
  Browser(BrowseList list, BrowseTitle title);
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  void resize(int width, int height);
  void press(const KeyPress& key);
  /// What is to be read, in this order.
  std::vector<Want> take_wants();
  /// What is being read and wanted no more; said once.
  Stop take_stop() { return std::exchange(stop_, {}); }
  void deliver(Answer answer);
  /// Bytes of what is being read now; nullopt: nothing is.
  void set_progress(std::optional<std::pair<std::uint64_t, std::uint64_t>> done_and_total) {
    progress_ = done_and_total;
  }
  bool is_done() const { return done_; }

  /// As many lines as the screen has, each of its width.
  Picture picture() const;
  std::vector<std::string> marked_names() const { return tree_.marked_names(); }

  const TreeView& tree() const { return tree_; }
  const BrowseList& list() const { return list_; }

 private:
  enum class View : std::uint8_t { kTree, kTensor, kText };
  int body_height() const { return height_ - 2; }

  void press_in_prompt(const KeyPress& key);
  void press_in_tree(const KeyPress& key);
  void tree_letter(char letter);
  void press_in_tensor(const KeyPress& key);
  void tensor_letter(char letter);
  void press_in_values(const KeyPress& key);
  bool press_in_text(TextView& text, const KeyPress& key);
  void start_search(bool again, bool forward);
  void search(bool forward);
  void say(TreeView::Found found);
  void open_tensor(std::uint32_t item);
  void leave_tensor();
  void show_text(std::string title, Picture lines);
  void show_help();
  void show_summary();
  void compare();
  void take_compared(const Answer& answer);
  void stop_reading();
  void fit();

  Picture tree_body() const;
  PictureLine tree_line(const TreeView::Row& row, bool is_cursor) const;
  PictureLine title_line() const;
  PictureLine status_line() const;
  std::string whereabouts() const;

  BrowseList list_;
  BrowseTitle title_;
  TreeView tree_;
  std::optional<TensorPage> page_;
  std::vector<std::uint32_t> pages_before_;  // items, to go back to
  TextView text_;
  std::string text_title_;
  View view_ = View::kTree, below_text_ = View::kTree;

  int width_ = 80, height_ = 24;
  std::int64_t top_ = 0;  // first line of the tree that is shown
  char prompt_ = 0;       // '/', '?' or ':' while one types
  std::string typed_, pattern_;
  std::string message_;
  bool done_ = false;
  Stop stop_;
  std::vector<Want> wants_;
  std::vector<std::vector<std::uint32_t>> to_compare_;  // batches, the next one last
  bool comparing_ = false;
  std::size_t compared_ = 0, compared_of_ = 0;
  std::map<std::uint32_t, TensorDiff> found_;  // by item
  std::optional<Answer> summary_;
  std::optional<std::pair<std::uint64_t, std::uint64_t>> progress_;
};

}  // namespace tessera::tools
