#pragma once
// TextIndex: which of many texts is this one? The texts stay with the caller, who numbers them from
// 0; the index holds at most 16 bytes for each.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace tessera {

class TextIndex {
 public:
  /// The number of `text`; `text_of(i)` is the text that was added with number i.
  template <class TextOf>
  std::optional<std::size_t> find(std::string_view text, TextOf&& text_of) const {
    if (slots_.empty()) return std::nullopt;
    const std::uint32_t slot = slots_[place_of(text, text_of)];
    return slot == 0 ? std::nullopt : std::optional<std::size_t>(slot - 1);
  }
  /// Gives `text` the next number and returns nothing, or the number that it has already.
  /// `text_of` is not asked for the new number.
  template <class TextOf>
  std::optional<std::size_t> add(std::string_view text, TextOf&& text_of) {
    if (slots_.size() < 2 * (std::size_t{count_} + 1)) grow(text_of);
    std::uint32_t& slot = slots_[place_of(text, text_of)];
    if (slot != 0) return slot - 1;
    slot = ++count_;
    return std::nullopt;
  }

 private:
  /// Where the text is (1 + its number), or 0 where it would be.
  template <class TextOf>
  std::size_t place_of(std::string_view text, TextOf&& text_of) const {
    std::size_t at = std::hash<std::string_view>()(text) % slots_.size();
    while (slots_[at] != 0 && std::string_view(text_of(slots_[at] - 1)) != text)
      at = (at + 1) % slots_.size();
    return at;
  }
  template <class TextOf>
  void grow(TextOf&& text_of) {
    slots_ = std::vector<std::uint32_t>(4 * (std::size_t{count_} + 1) + 1);
    for (std::uint32_t i = 0; i < count_; ++i) slots_[place_of(text_of(i), text_of)] = i + 1;
  }

  std::uint32_t count_ = 0;
  std::vector<std::uint32_t> slots_;
};

}  // namespace tessera
