#include <tessera/state/findings.h>

#include <algorithm>
#include <array>
#include <string>

#include "lib/state/finding_rows/audit.h"
#include "lib/state/finding_rows/convert.h"
#include "lib/state/finding_rows/file.h"
#include "lib/state/finding_rows/format.h"
#include "lib/state/finding_rows/optim.h"

namespace tessera {
namespace {

constexpr std::size_t kRows = kNoteRows.size() + kFileRows.size() + kFormatRows.size() +
                              kOptimRows.size() + kAuditRows.size();

constexpr std::array<FindingInfo, kRows> joined() {
  std::array<FindingInfo, kRows> all;
  auto* at = all.data();
  at = std::copy(kNoteRows.begin(), kNoteRows.end(), at);
  at = std::copy(kFileRows.begin(), kFileRows.end(), at);
  at = std::copy(kFormatRows.begin(), kFormatRows.end(), at);
  at = std::copy(kOptimRows.begin(), kOptimRows.end(), at);
  std::copy(kAuditRows.begin(), kAuditRows.end(), at);
  return all;
}

constexpr std::array<FindingInfo, kRows> kFindings = joined();

constexpr bool in_order_of_the_enum() {
  for (std::size_t i = 0; i < kRows; ++i)
    if (static_cast<std::size_t>(kFindings[i].finding) != i) return false;
  return true;
}
static_assert(in_order_of_the_enum());
static_assert(kFindings.back().finding == Finding::kLeftover, "every enumerator has a row");

std::string upper(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  });
  return out;
}

}  // namespace

std::string_view severity_name(Severity severity) {
  switch (severity) {
    case Severity::kInfo:
      return "info";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return {};
}

std::span<const FindingInfo> all_findings() { return kFindings; }

const FindingInfo& finding_info(Finding finding) {
  return kFindings[static_cast<std::size_t>(finding)];
}

std::string_view code_text(Finding finding) { return finding_info(finding).code; }

std::optional<Finding> find_finding(std::string_view code) {
  const std::string wanted = upper(code);
  if (wanted.empty()) return std::nullopt;
  const auto row = std::ranges::find(kFindings, std::string_view(wanted), &FindingInfo::code);
  if (row == kFindings.end()) return std::nullopt;
  return row->finding;
}

}  // namespace tessera
