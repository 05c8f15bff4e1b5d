// The checkpoints of a run: first which one to go on from, then a row for each, then why some are
// not whole, a line for each reason.
#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tools/failure.h"
#include "tools/render/number_text.h"
#include "tools/render/render.h"
#include "tools/render/table.h"

namespace tessera::tools {
namespace {

std::string age_of(const RunListing& listing, const RunRow& row) {
  if (row.modified_ns == 0) return "-";
  return age_text(static_cast<double>(listing.listed_ns - row.modified_ns) / 1e9);
}

/// What was selected, or all that it takes on the disk.
std::uint64_t weight(const RunRow& row) { return std::max(row.bytes, row.disk_bytes); }

bool is_unsafe(const RunRow& row) { return !row.complete && says_unsafe(row.problem); }

/// "newest whole: step-100 (385 MiB, 2 h ago); 3 damaged, 1 not read".
std::string verdict(const RunListing& listing, const Screen& screen) {
  const auto refused = std::ranges::count_if(listing.rows, &RunRow::is_refused);
  const auto unsafe = std::ranges::count_if(listing.rows, is_unsafe);
  const auto damaged =
      std::ranges::count(listing.rows, false, &RunRow::complete) - refused - unsafe;
  std::string text;
  if (const RunRow* newest = listing.newest_whole()) {
    constexpr int kRest = 44;  // of the line: its first words, and what follows the facts
    const std::string name = printable(newest->name);
    const std::string facts =
        fmt::format("({}, {} ago)", format_bytes(weight(*newest)), age_of(listing, *newest));
    const bool breaks =
        !screen.whole && display_width(name) + display_width(facts) + kRest > screen.width;
    text = screen.paint(Tint::kGreen, "newest whole: ") + screen.paint(Tint::kBold, name) +
           (breaks ? "\n  " : " ") + facts;
  } else {
    text = screen.paint(Tint::kRed, "none is whole");
  }
  if (unsafe > 0) text += screen.paint(Tint::kRed, fmt::format("; {} unsafe", unsafe));
  if (damaged > 0) text += screen.paint(Tint::kRed, fmt::format("; {} damaged", damaged));
  if (refused > 0) text += screen.paint(Tint::kYellow, fmt::format("; {} not read", refused));
  return text + "\n";
}

Cell state_of(const RunRow& row) {
  if (row.complete) return {"whole", Tint::kGreen};
  if (row.is_refused) return {"not read", Tint::kYellow};
  return {is_unsafe(row) ? "unsafe" : "damaged", Tint::kRed};
}

std::string rows(const RunListing& listing, const Screen& screen) {
  Table table({{"checkpoint", false, 1},
               {"step", true},
               {"format"},
               {"ranks", true, 0, true},
               {"bytes", true},
               {"age", true, 0, true},
               {"state"},
               {""}});
  for (const RunRow& row : listing.rows) {
    std::string step = row.step ? fmt::format("{}", *row.step) : "-";
    if (row.stored_step && row.stored_step != row.step)
      step = row.step ? fmt::format("{} (holds {})", *row.step, *row.stored_step)
                      : fmt::format("{}", *row.stored_step);
    table.add({printable(row.name), step, row.format.empty() ? "?" : row.format,
               row.world_size ? fmt::format("{}", *row.world_size) : "-", format_bytes(weight(row)),
               age_of(listing, row), state_of(row),
               row.is_latest ? "<- " + printable(listing.pointer) : ""});
  }
  return table.render(screen, "  ");
}

/// Each reason once, with those that have it.
std::string reasons(const RunListing& listing, const Screen& screen) {
  constexpr std::size_t kNamed = 4;
  std::vector<std::pair<std::string, std::vector<const RunRow*>>> groups;
  std::map<std::string, std::size_t> known;
  for (const RunRow& row : listing.rows) {
    if (row.complete) continue;
    const std::string kind = without_numbers(row.problem);
    const auto [at, is_new] = known.try_emplace(kind, groups.size());
    if (is_new) groups.push_back({row.problem, {}});
    groups[at->second].second.push_back(&row);
  }
  std::string text;
  for (const auto& [reason, those] : groups) {
    std::string names;
    for (std::size_t i = 0; i < std::min(kNamed, those.size()); ++i)
      names += (i ? ", " : "") + printable(those[i]->name);
    if (those.size() > kNamed) names += fmt::format(" and {} more", those.size() - kNamed);
    text += screen.wrap(
        fmt::format("{}: {}: {}", state_of(*those[0]).text, names, printable(reason)), "  ");
  }
  return text;
}

}  // namespace

std::string render_run(const RunListing& listing, const Screen& screen) {
  std::uint64_t bytes = 0;
  for (const RunRow& row : listing.rows) bytes += weight(row);
  std::string text =
      name_and_facts(printable(listing.path),
                     fmt::format("{}, {}; {} free", counted(listing.rows.size(), "checkpoint"),
                                 format_bytes(bytes), format_bytes(listing.free_bytes)),
                     screen);
  if (!listing.rows.empty()) text += verdict(listing, screen) + rows(listing, screen);
  text += reasons(listing, screen);
  if (listing.pointer_stale)
    text += screen.paint(Tint::kYellow, fmt::format("  {} names {}, which is not there",
                                                    printable(listing.pointer),
                                                    printable(listing.pointer_target))) +
            "\n";
  if (!listing.others.empty()) {
    std::vector<std::string> names;
    for (const std::string& path : listing.others) names.push_back(printable(path));
    text +=
        fact_lines("others", fmt::format("no checkpoints: {}", fmt::join(names, ", ")), 2, screen);
  }
  return text;
}

}  // namespace tessera::tools
