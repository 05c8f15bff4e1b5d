#pragma once
// The page of one tensor, of one checkpoint or of both: facts, histogram, values, pieces, optimizer.
// It asks for what its open part needs and shows what came. Pure.
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/browse/list.h"
#include "tools/browse/text_view.h"
#include "tools/browse/value_grid.h"
#include "tools/browse/want.h"

namespace tessera::tools {

enum class TensorTab : std::uint8_t { kFacts, kHistogram, kValues, kPieces, kOptimizer };
inline constexpr int kTensorTabs = 5;
std::string_view tab_name(TensorTab tab);

/// Tensors up to this size are read when their numbers are looked at; larger ones on request.
inline constexpr std::uint64_t kReadUnasked = std::uint64_t{256} << 20;

class TensorPage {
 public:
  /// `list` is borrowed.
  TensorPage(const BrowseList& list, std::uint32_t item);

  std::uint32_t item() const { return item_; }
  TensorTab tab() const { return tab_; }
  void show(TensorTab tab);
  void set_room(int width, int height);
  /// What it lacks and has not asked for.
  std::vector<Want> wants();
  void deliver(Answer answer);
  /// Elements were compared.
  void set_difference(std::optional<TensorDiff> difference);
  /// Numbers may be read, however large the tensor is.
  void read_anyway();
  /// Reading was stopped: what is missing may be asked for again.
  void forget_asked() { asked_.clear(); }
  void toggle_logarithmic();

  TextView& text() { return text_; }
  ValueGrid& grid() { return grid_; }
  Picture body() const;
  /// What the status line says of where one is.
  std::string position() const;

 private:
  const BrowseItem& it() const { return list_.items()[item_]; }
  bool may_read() const { return anyway_ || it().bytes <= kReadUnasked; }
  std::string waiting(Need need) const;
  Picture facts_of(std::size_t side, int width) const;
  Picture histogram_of(std::size_t side, int width) const;
  Picture pieces_of(std::size_t side, int width) const;
  Picture optimizer_of(std::size_t side, int width, std::size_t before,
                       std::map<std::size_t, std::uint32_t>& links) const;
  Picture of_both(Picture (TensorPage::*of)(std::size_t side, int width) const, Need need) const;
  Picture difference_lines() const;
  void remake();
  Picture values_body() const;

  const BrowseList& list_;
  std::uint32_t item_;
  TensorTab tab_ = TensorTab::kFacts;
  int width_ = 80, height_ = 22;
  bool anyway_ = false, logarithmic_ = false;
  std::set<Need> asked_;
  std::map<Need, Answer> answers_;
  std::optional<ValueWindow> asked_window_;
  std::optional<TensorDiff> difference_;
  TextView text_;
  ValueGrid grid_;
};

}  // namespace tessera::tools
