#include "tools/browse/help.h"

#include <array>
#include <span>
#include <string>
#include <string_view>

namespace tessera::tools {
namespace {

struct HelpLine {
  std::string_view keys, text;  // without keys: a heading
};

constexpr std::array kTreeKeys = {
    HelpLine{"", "The tree"},
    HelpLine{"Up Down, j k", "line by line; PgUp PgDn, b Space: page by page; g G, Home End: ends"},
    HelpLine{"Right, l", "open a module, or the page of a tensor; Left, h: close it"},
    HelpLine{"Enter", "show this module alone, or the page of a tensor; u, Backspace: back"},
    HelpLine{"e E", "open all below, close all"},
    HelpLine{"s a c o",
             "sort by size, name (alphabet), count of tensors, as stored; again: reversed"},
    HelpLine{"/ n N",
             "search a name or a part of it, next, previous; small letters match capitals"},
    HelpLine{"m ' M", "mark (the names are printed at the end), next mark, no marks"},
    HelpLine{"i", "summary of the checkpoint, with its values"},
    HelpLine{"q Q", "leave; Q from everywhere"},
};
constexpr std::array kTensorKeys = {
    HelpLine{"", "The page of a tensor"},
    HelpLine{"1 2 3 4 5, Tab", "facts, histogram, values, pieces, optimizer beside its parameter"},
    HelpLine{"q, Esc", "back; Left, h as well, but in values"},
    HelpLine{"r", "read a large tensor's numbers; below 256 MiB they are read unasked"},
    HelpLine{"L", "histogram of values, or of magnitudes on a log scale"},
    HelpLine{"arrows, < >", "values: by rows and columns; PgUp PgDn, Home End, g G: farther"},
    HelpLine{"[ ]", "values: the plane before, the next one, where there are more than two dims"},
    HelpLine{":", "values: go to an index, as 12,3 or all dims"},
    HelpLine{"Enter", "optimizer: the page of the tensor at the cursor"},
};
constexpr std::array kTwoKeys = {
    HelpLine{"", "Two checkpoints"},
    HelpLine{"=", "compare the elements of all below, or of this tensor; Esc stops it"},
    HelpLine{"d D", "next and previous tensor that differs; x: only what differs"},
    HelpLine{"r", "sort by relative change"},
    HelpLine{"marks", "= equal, ≠ elements differ, ! type or shape, - only in A, + only in B"},
};

constexpr int kKeysWidth = 18;

void add(Picture& picture, std::span<const HelpLine> lines, int width) {
  if (!picture.empty()) picture.push_back({Span("")});
  for (const HelpLine& line : lines) {
    if (line.keys.empty()) {
      picture.push_back({Span(std::string(line.text), Tint::kBold)});
      continue;
    }
    std::string keys = "  " + std::string(line.keys);
    for (const PictureLine& text : lines_of(wrap(line.text, width - kKeysWidth, ""))) {
      picture.push_back({Span(pad_right(keys, kKeysWidth), Tint::kCyan), text[0]});
      keys.clear();
    }
  }
}

}  // namespace

Picture help_lines(bool two, int width) {
  Picture picture;
  add(picture, kTreeKeys, width);
  if (two) add(picture, kTwoKeys, width);
  add(picture, kTensorKeys, width);
  return picture;
}

}  // namespace tessera::tools
