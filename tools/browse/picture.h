#pragma once
// What the browser shows, as lines of text with tints: pure data, which tests read and a terminal
// draws. Text is printable; a line may be wider than the screen, which cuts it.
#include <string>
#include <string_view>
#include <vector>

#include "tools/render/screen.h"

namespace tessera::tools {

struct Span {
  Span(std::string t, Tint with = Tint::kPlain, bool invert = false)  // NOLINT: a span is its text
      : text(std::move(t)), tint(with), inverted(invert) {}
  Span(const char* t) : text(t) {}  // NOLINT
  std::string text;
  Tint tint = Tint::kPlain;
  bool inverted = false;
};
using PictureLine = std::vector<Span>;
using Picture = std::vector<PictureLine>;

std::string plain_text(const PictureLine& line);
/// Lines, each with its end.
std::string plain_text(const Picture& picture);
int width_of(const PictureLine& line);
/// Exactly `width` columns: cut, or filled with spaces.
PictureLine fitted(PictureLine line, int width);
/// All of it inverted, over the whole width.
PictureLine inverted(PictureLine line, int width);
/// `right` at the right edge, where both fit; else `left` alone.
PictureLine justified(PictureLine left, const PictureLine& right, int width);

/// A text of lines as lines of one span.
Picture lines_of(std::string_view text);

}  // namespace tessera::tools
