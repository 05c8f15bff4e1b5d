#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>

#include "tools/render/number_text.h"
#include "tools/render/render.h"

namespace tessera::tools {
namespace {

constexpr std::size_t kShownFiles = 20;  // of those that need no reasons
constexpr std::size_t kShownFindings = 20;
constexpr std::size_t kShownLinks = 20;

std::string_view word_of(std::optional<Safety> safety) {
  if (!safety) return "not judged";
  constexpr std::string_view kWords[] = {"SAFE", "UNKNOWN", "DANGEROUS"};
  return kWords[static_cast<std::size_t>(*safety)];
}

Tint verdict_tint(std::optional<Safety> safety) {
  if (!safety) return Tint::kDim;
  constexpr Tint kTints[] = {Tint::kGreen, Tint::kYellow, Tint::kRed};
  return kTints[static_cast<std::size_t>(*safety)];
}

std::string head_of(const ScannedFile& file, const Screen& screen) {
  return screen.paint(verdict_tint(file.safety), pad_right(word_of(file.safety), 10)) + "  " +
         printable(file.path) + (file.kind.empty() ? "" : fmt::format("  ({})", file.kind)) + "\n";
}

constexpr std::string_view kIndent = "            ";

/// Whole lines: a name that is cut is of no use.
std::string reasons(const ScannedFile& file) {
  std::string text;
  for (std::size_t i = 0; i < std::min(kShownFindings, file.findings.size()); ++i) {
    const ScanFinding& finding = file.findings[i];
    text +=
        fmt::format("{}{}{}\n", kIndent, printable(finding.message),
                    finding.inside.empty() ? "" : fmt::format("  [{}]", printable(finding.inside)));
  }
  const std::uint64_t more =
      file.findings.size() - std::min(kShownFindings, file.findings.size()) + file.more_findings;
  if (more > 0) text += fmt::format("{}... and {} more\n", kIndent, more);
  if (!file.use_instead.empty())
    text += fmt::format("{}use {} instead, which is safe\n", kIndent, printable(file.use_instead));
  return text;
}

std::string files_of(const ScanReport& r, std::optional<Safety> safety, const Screen& screen) {
  const bool explained = safety.value_or(Safety::kSafe) != Safety::kSafe;
  std::string text;
  std::size_t shown = 0, all = 0;
  for (const ScannedFile& file : r.files) {
    if (file.safety != safety) continue;
    ++all;
    if (!explained && shown >= kShownFiles) continue;
    ++shown;
    text += head_of(file, screen) + (explained ? reasons(file) : "");
  }
  if (all > shown)
    text += fmt::format("{}  ... and {} more\n", pad_right(word_of(safety), 10), all - shown);
  return text;
}

std::string links_text(const ScanReport& r) {
  std::string text;
  for (std::size_t i = 0; i < std::min(kShownLinks, r.links.size()); ++i) {
    const ScannedLink& link = r.links[i];
    text += link.leaves ? fmt::format("link        {} -> {}, outside\n", printable(link.path),
                                      printable(link.target))
                        : fmt::format("link        {} leads nowhere\n", printable(link.path));
  }
  if (r.links.size() > kShownLinks)
    text += fmt::format("link        ... and {} more\n", r.links.size() - kShownLinks);
  return text;
}

std::string_view meaning(const ScanReport& r) {
  if (r.safe + r.unknown + r.dangerous == 0) return "no file of a kind that can be judged";
  switch (r.safety) {
    case Safety::kSafe:
      return "plain data";
    case Safety::kUnknown:
      return "load it only if you trust where it comes from";
    case Safety::kDangerous:
      break;
  }
  return "loading it would run code: do not load it";
}

}  // namespace

std::string render_scan(const ScanReport& r, const Screen& screen) {
  std::string text;
  for (const std::optional<Safety> safety :
       {std::optional(Safety::kDangerous), std::optional(Safety::kUnknown),
        std::optional(Safety::kSafe), std::optional<Safety>()})
    text += files_of(r, safety, screen);
  text += links_text(r);
  text += fmt::format("{} dangerous, {} unknown, {} safe, {} not judged\n", r.dangerous, r.unknown,
                      counted(r.safe, "file"), r.not_judged);
  text +=
      screen.paint(verdict_tint(r.safety), word_of(r.safety)) + fmt::format("  {}\n", meaning(r));
  return text;
}

}  // namespace tessera::tools
