// Copyright 2024 Arthur Sonzogni. All rights reserved.
// Use of this source code is governed by the MIT license that can be found in
// the LICENSE file.
#ifndef FTXUI_SCREEN_IMAGE_HPP
#define FTXUI_SCREEN_IMAGE_HPP

#include "ftxui/screen/pixel.hpp"
#include "ftxui/screen/surface.hpp"

namespace ftxui {
using Image = Surface;
}  // namespace ftxui

#endif  // FTXUI_SCREEN_IMAGE_HPP
