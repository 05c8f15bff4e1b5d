// explain: what a finding's code means, its usual cause and its cure.
#include <fmt/format.h>
#include <tessera/base/text.h>
#include <tessera/state/findings.h>

#include <algorithm>
#include <iterator>

#include "tools/documents/documents.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/verbs.h"
#include "tools/render/render.h"

namespace tessera::tools {
namespace {

[[noreturn]] void refuse_code(const std::string& code) {
  std::vector<std::string_view> codes;
  for (const FindingInfo& row : all_findings()) codes.push_back(row.code);
  std::string upper = code;
  for (char& c : upper) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  const std::string near = nearest(upper, codes);
  fail(Code::kNotFound, fmt::format("no finding has the code \"{}\"", printable(code)),
       fmt::format("{}ckpt-inspect explain lists every code",
                   near.empty() ? "" : fmt::format("did you mean {}? ", near)));
}

}  // namespace

Outcome run_explain(Inspection& in) {
  std::vector<FindingInfo> rows;
  for (const std::string& code : in.a.words) {
    const auto finding = find_finding(code);
    if (!finding) refuse_code(code);
    rows.push_back(finding_info(*finding));
  }
  if (in.a.words.empty())
    std::ranges::copy_if(all_findings(), std::back_inserter(rows),
                         [](const FindingInfo& row) { return row.finding != Finding::kNone; });
  return {in.in_form([&] { return explain_document(rows); }, {{"findings", "finding"}},
                     [&] { return render_explain(rows, in.screen); }),
          0,
          {}};
}

}  // namespace tessera::tools
