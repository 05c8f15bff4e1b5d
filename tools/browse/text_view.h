#pragma once
// A text that is longer than the screen, as `less` shows it. Lines may be links, which the cursor
// goes to. Pure.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "tools/browse/picture.h"

namespace tessera::tools {

class TextView {
 public:
  /// `links`: line -> what it leads to. The place stays where the text allows.
  void set(Picture lines, std::map<std::size_t, std::uint32_t> links = {});
  void set_height(int height);
  void scroll(std::int64_t by);
  /// To the next link, where there are any; else scrolls.
  void step(int by);
  const std::uint32_t* link() const;
  /// The next line that holds `pattern`.
  bool search(std::string_view pattern, bool forward);
  /// `height` lines or fewer, and where in the text they stand: "1-20 of 64".
  Picture visible() const;
  std::string position() const;

 private:
  std::int64_t last_top() const;

  Picture lines_;
  std::map<std::size_t, std::uint32_t> links_;
  std::int64_t top_ = 0;
  std::int64_t at_ = -1;  // the link with the cursor
  int height_ = 1;
};

}  // namespace tessera::tools
