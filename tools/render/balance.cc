// The account at the end of reshard and convert, and what lies beside a checkpoint.
#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>

#include "tools/render/number_text.h"
#include "tools/render/render.h"

namespace tessera::tools {
namespace {

constexpr std::size_t kMostNames = 3;

std::string count_words(const StateCount& count) {
  std::vector<std::string> parts;
  if (count.tensors) parts.push_back(counted(static_cast<std::uint64_t>(count.tensors), "tensor"));
  if (count.values) parts.push_back(counted(static_cast<std::uint64_t>(count.values), "value"));
  if (count.inner_tensors)
    parts.push_back(counted(static_cast<std::uint64_t>(count.inner_tensors), "tensor") +
                    " inside of values");
  std::string text = parts.empty() ? "nothing" : fmt::format("{}", fmt::join(parts, ", "));
  if (count.bytes)
    text += fmt::format(" ({})", format_bytes(static_cast<std::uint64_t>(count.bytes)));
  return text;
}

/// Tensors first.
std::string some_names(const LeftOutGroup& group) {
  std::string text;
  std::size_t shown = 0;
  for (const auto* names : {&group.tensors, &group.values})
    for (const std::string& name : *names) {
      if (shown++ == kMostNames) return text + ", ...";
      text += (text.empty() ? "" : ", ") + printable(name);
    }
  return text;
}

}  // namespace

std::string render_balance(const Balance& balance) {
  if (balance.left_out().empty() && balance.left_behind.empty()) return {};
  std::string text = fmt::format("balance: the source holds {}; written: {}\n",
                                 count_words(balance.source()), count_words(balance.written()));
  for (const LeftOutGroup& group : balance.left_out()) {
    const StateCount& count = group.count;
    const bool uncounted = count.tensors == 0 && count.values == 0 && count.inner_tensors == 0;
    text += fmt::format("  left out: {}{}: {}\n", uncounted ? "" : count_words(count) + ": ",
                        printable(group.reason), some_names(group));
  }
  if (!balance.left_behind.empty()) {
    std::vector<std::string> files;
    for (const LeftBehind& file : balance.left_behind)
      files.push_back(fmt::format("{} ({}{})", printable(file.path), file.what,
                                  file.bytes == 0 ? "" : ", " + format_bytes(file.bytes)));
    text += fmt::format("  left behind, beside the source: {}\n", fmt::join(files, ", "));
  }
  return text;
}

std::string beside_line(const Beside& beside) {
  return fmt::format("{} ({}, {})", printable(beside.path), beside.what,
                     format_bytes(beside.bytes));
}

}  // namespace tessera::tools
