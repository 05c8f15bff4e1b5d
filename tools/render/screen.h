#pragma once
// The terminal, or what stands for it: how wide a line may be, and whether colours help.
//
// Text is UTF-8. Widths are columns: wide East Asian characters and emoji count 2, combining marks
// 0.
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::tools {

enum class Tint { kPlain, kBold, kDim, kRed, kGreen, kYellow, kCyan };

struct Screen {
  int width = 100;
  bool color = false;
  bool whole = false;  // names and messages are never cut or broken: a program may read them

  /// A name or path: at most `columns` of it, unless names stay whole.
  std::string clip(std::string_view text, int columns) const;
  /// As tools::wrap, to the screen's width; one line where text stays whole.
  std::string wrap(std::string_view text, std::string_view indent) const;

  /// `text` between escapes, where colours are on.
  std::string paint(Tint tint, std::string_view text) const;
};

enum class ColorMode : std::uint8_t { kAuto, kAlways, kNever };

/// stdout's: COLUMNS, else the terminal's width (at least 40); else 100 with names whole, which may
/// be wider. kAuto: colours on a terminal unless NO_COLOR or TERM=dumb says otherwise.
Screen make_screen(ColorMode color);

int display_width(std::string_view text);
/// At most `width` columns; the middle of what is too long becomes one ellipsis (the ends of a
/// dotted name matter most).
std::string clip_middle(std::string_view text, int width);
std::string clip_end(std::string_view text, int width);
std::string pad_right(std::string_view text, int width);
std::string pad_left(std::string_view text, int width);

/// Lines of at most `width` columns, broken at spaces; a word longer than a line is cut, behind a dot or slash
/// where one is near its end.
std::string wrap(std::string_view text, int width, std::string_view indent);

}  // namespace tessera::tools
