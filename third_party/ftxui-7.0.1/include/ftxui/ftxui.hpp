// Copyright 2026 Arthur Sonzogni. All rights reserved.
// Use of this source code is governed by the MIT license that can be found in
// the LICENSE file.
#ifndef FTXUI_HPP
#define FTXUI_HPP

#include "ftxui/component/animation.hpp"
#include "ftxui/component/app.hpp"
#include "ftxui/component/captured_mouse.hpp"
#include "ftxui/component/component.hpp"
#include "ftxui/component/component_base.hpp"
#include "ftxui/component/component_options.hpp"
#include "ftxui/component/event.hpp"
#include "ftxui/component/loop.hpp"
#include "ftxui/component/mouse.hpp"
#include "ftxui/component/receiver.hpp"
#include "ftxui/component/screen_interactive.hpp"
#include "ftxui/component/task.hpp"
#include "ftxui/dom/canvas.hpp"
#include "ftxui/dom/direction.hpp"
#include "ftxui/dom/elements.hpp"
#include "ftxui/dom/flexbox_config.hpp"
#include "ftxui/dom/linear_gradient.hpp"
#include "ftxui/dom/node.hpp"
#include "ftxui/dom/table.hpp"
#include "ftxui/screen/box.hpp"
#include "ftxui/screen/cell.hpp"
#include "ftxui/screen/color.hpp"
#include "ftxui/screen/color_info.hpp"
#include "ftxui/screen/image.hpp"
#include "ftxui/screen/pixel.hpp"
#include "ftxui/screen/screen.hpp"
#include "ftxui/screen/string.hpp"
#include "ftxui/screen/surface.hpp"
#include "ftxui/screen/terminal.hpp"
#include "ftxui/util/autoreset.hpp"
#include "ftxui/util/export.hpp"
#include "ftxui/util/ref.hpp"

#endif /* end of include guard: FTXUI_HPP */
