// Copyright 2024 Arthur Sonzogni. All rights reserved.
// Use of this source code is governed by the MIT license that can be found in
// the LICENSE file.
#ifndef FTXUI_SCREEN_PIXEL_HPP
#define FTXUI_SCREEN_PIXEL_HPP

#include "ftxui/screen/cell.hpp"

namespace ftxui {
using Pixel = Cell;
}  // namespace ftxui

#endif  // FTXUI_SCREEN_PIXEL_HPP
