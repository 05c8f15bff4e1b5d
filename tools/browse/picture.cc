#include "tools/browse/picture.h"

#include <tessera/base/text.h>

#include <algorithm>

namespace tessera::tools {

std::string plain_text(const PictureLine& line) {
  std::string text;
  for (const Span& span : line) text += span.text;
  return text;
}

std::string plain_text(const Picture& picture) {
  std::string text;
  for (const PictureLine& line : picture) text += plain_text(line) + "\n";
  return text;
}

int width_of(const PictureLine& line) {
  int width = 0;
  for (const Span& span : line) width += display_width(span.text);
  return width;
}

PictureLine fitted(PictureLine line, int width) {
  int left = width;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const int wide = display_width(line[i].text);
    if (wide > left) {
      line[i].text = clip_end(line[i].text, left);
      left -= display_width(line[i].text);
      line.erase(line.begin() + static_cast<std::ptrdiff_t>(i) + 1, line.end());
      break;
    }
    left -= wide;
  }
  if (left > 0) line.emplace_back(std::string(static_cast<std::size_t>(left), ' '));
  return line;
}

PictureLine inverted(PictureLine line, int width) {
  line = fitted(std::move(line), width);
  for (Span& span : line) span.inverted = true;
  return line;
}

PictureLine justified(PictureLine left, const PictureLine& right, int width) {
  const int gap = width - width_of(left) - width_of(right);
  if (gap < 1) return left;
  left.emplace_back(std::string(static_cast<std::size_t>(gap), ' '));
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

Picture lines_of(std::string_view text) {
  Picture picture;
  if (text.ends_with('\n')) text.remove_suffix(1);
  for (const std::string_view line : split(text, '\n'))
    picture.push_back({Span(std::string(line))});
  return picture;
}

}  // namespace tessera::tools
