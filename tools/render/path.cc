// How PATH is understood, rule by rule.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include "tools/render/render.h"
#include "tools/render/table.h"

namespace tessera::tools {
namespace {

Cell answer_cell(PathStep::Answer answer) {
  const std::string text(path_answer_name(answer));
  switch (answer) {
    case PathStep::Answer::kYes:
      return {text, Tint::kGreen};
    case PathStep::Answer::kFailed:
      return {text, Tint::kRed};
    case PathStep::Answer::kNo:
    case PathStep::Answer::kNotAsked:
      break;
  }
  return {text, Tint::kDim};
}

}  // namespace

std::string render_path(const PathExplanation& r, const Screen& screen) {
  std::string text =
      fmt::format("{} is a {}: it means\n", printable(r.path), r.is_folder ? "folder" : "file");
  Table table({{""}, {""}, {""}, {"", false, 1}});
  for (std::size_t i = 0; i < r.steps.size(); ++i)
    table.add({fmt::format("{}.", i + 1), r.steps[i].rule, answer_cell(r.steps[i].answer),
               printable(r.steps[i].reason)});
  text += table.render(screen, "  ");
  if (!r.found.empty()) text += fmt::format("{}, {}\n", printable(r.found), r.format);
  return text;
}

}  // namespace tessera::tools
