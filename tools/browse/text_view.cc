#include "tools/browse/text_view.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/browse/tree_view.h"

namespace tessera::tools {

void TextView::set(Picture lines, std::map<std::size_t, std::uint32_t> links) {
  lines_ = std::move(lines);
  links_ = std::move(links);
  if (at_ < 0 || !links_.contains(static_cast<std::size_t>(at_)))
    at_ = links_.empty() ? -1 : static_cast<std::int64_t>(links_.begin()->first);
  scroll(0);
}

void TextView::set_height(int height) {
  height_ = std::max(1, height);
  scroll(0);
}

std::int64_t TextView::last_top() const {
  return std::max<std::int64_t>(0, static_cast<std::int64_t>(lines_.size()) - height_);
}

void TextView::scroll(std::int64_t by) {
  const std::int64_t last = last_top();
  top_ = by > last - top_ ? last : std::max<std::int64_t>(0, by < -top_ ? 0 : top_ + by);
}

void TextView::step(int by) {
  if (links_.empty()) return scroll(by);
  auto at = links_.find(static_cast<std::size_t>(at_));
  if (by > 0 && std::next(at) != links_.end()) ++at;
  if (by < 0 && at != links_.begin()) --at;
  at_ = static_cast<std::int64_t>(at->first);
  if (at_ < top_) scroll(at_ - top_);
  if (at_ >= top_ + height_) scroll(at_ - top_ - height_ + 1);
}

const std::uint32_t* TextView::link() const {
  const auto at = at_ < 0 ? links_.end() : links_.find(static_cast<std::size_t>(at_));
  return at == links_.end() ? nullptr : &at->second;
}

bool TextView::search(std::string_view pattern, bool forward) {
  const auto count = static_cast<std::int64_t>(lines_.size());
  for (std::int64_t step = 1; step <= count; ++step) {
    const std::int64_t at = (top_ + (forward ? step : count - step)) % count;
    if (!holds_pattern(plain_text(lines_[static_cast<std::size_t>(at)]), pattern)) continue;
    top_ = at;
    scroll(0);
    return true;
  }
  return false;
}

Picture TextView::visible() const {
  Picture out;
  for (std::int64_t i = top_; i < static_cast<std::int64_t>(lines_.size()) && i < top_ + height_;
       ++i) {
    out.push_back(lines_[static_cast<std::size_t>(i)]);
    if (i == at_)
      for (Span& span : out.back()) span.inverted = true;
  }
  return out;
}

std::string TextView::position() const {
  const auto count = static_cast<std::int64_t>(lines_.size());
  if (count <= height_) return {};
  return fmt::format("{}-{} of {}", top_ + 1, std::min(count, top_ + height_), count);
}

}  // namespace tessera::tools
