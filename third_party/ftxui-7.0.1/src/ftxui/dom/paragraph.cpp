// Copyright 2020 Arthur Sonzogni. All rights reserved.
// Use of this source code is governed by the MIT license that can be found in
// the LICENSE file.
#include <functional>   // for function
#include <sstream>      // for basic_istream, stringstream
#include <string>       // for string, allocator, getline
#include <string_view>  // for string_view
#include <utility>      // for move

#include "ftxui/dom/elements.hpp"  // for flexbox, Element, text, Elements, operator|, xflex, paragraph, paragraphAlignCenter, paragraphAlignJustify, paragraphAlignLeft, paragraphAlignRight
#include "ftxui/dom/flexbox_config.hpp"  // for FlexboxConfig, FlexboxConfig::JustifyContent, FlexboxConfig::JustifyContent::Center, FlexboxConfig::JustifyContent::FlexEnd, FlexboxConfig::JustifyContent::SpaceBetween

namespace ftxui {

namespace {
Elements Split(std::string_view the_text) {
  Elements output;
  size_t start = 0;
  size_t end = the_text.find(' ');
  while (end != std::string_view::npos) {
    output.push_back(text(the_text.substr(start, end - start)));
    start = end + 1;
    end = the_text.find(' ', start);
  }
  output.push_back(text(the_text.substr(start)));
  return output;
}

Element Split(std::string_view paragraph,
              const std::function<Element(std::string_view)>& f) {
  Elements output;
  size_t start = 0;
  size_t end = paragraph.find('\n');
  while (end != std::string_view::npos) {
    output.push_back(f(paragraph.substr(start, end - start)));
    start = end + 1;
    end = paragraph.find('\n', start);
  }
  output.push_back(f(paragraph.substr(start)));
  return vbox(std::move(output));
}

}  // namespace

/// @brief Return an element drawing the paragraph on multiple lines.
/// @ingroup dom
/// @see flexbox.
Element paragraph(std::string_view the_text) {
  return paragraphAlignLeft(the_text);
}

/// @brief Return an element drawing the paragraph on multiple lines, aligned on
/// the left.
/// @ingroup dom
/// @see flexbox.
Element paragraphAlignLeft(std::string_view the_text) {
  return Split(the_text, [](std::string_view line) {
    static const auto config = FlexboxConfig().SetGap(1, 0);
    return flexbox(Split(line), config);
  });
};

/// @brief Return an element drawing the paragraph on multiple lines, aligned on
/// the right.
/// @ingroup dom
/// @see flexbox.
Element paragraphAlignRight(std::string_view the_text) {
  return Split(the_text, [](std::string_view line) {
    static const auto config = FlexboxConfig().SetGap(1, 0).Set(
        FlexboxConfig::JustifyContent::FlexEnd);
    return flexbox(Split(line), config);
  });
}

/// @brief Return an element drawing the paragraph on multiple lines, aligned on
/// the center.
/// @ingroup dom
/// @see flexbox.
Element paragraphAlignCenter(std::string_view the_text) {
  return Split(the_text, [](std::string_view line) {
    static const auto config =
        FlexboxConfig().SetGap(1, 0).Set(FlexboxConfig::JustifyContent::Center);
    return flexbox(Split(line), config);
  });
}

/// @brief Return an element drawing the paragraph on multiple lines, aligned
/// using a justified alignment.
/// the center.
/// @ingroup dom
/// @see flexbox.
Element paragraphAlignJustify(std::string_view the_text) {
  return Split(the_text, [](std::string_view line) {
    static const auto config = FlexboxConfig().SetGap(1, 0).Set(
        FlexboxConfig::JustifyContent::SpaceBetween);
    Elements words = Split(line);
    words.push_back(text("") | xflex);
    return flexbox(std::move(words), config);
  });
}

}  // namespace ftxui
