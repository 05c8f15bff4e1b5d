#pragma once
// What the verbs share that make a page of HTML: `report`, and --html of others.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/inspect/inspection.h"
#include "tools/report/report.h"

namespace tessera::tools {

/// As for reading, but damage is shown and not refused, where no element is read.
OpenOptions page_options(const Inspection& in, const std::string& from, const std::string& root,
                         bool reads_elements);
/// Summary, and what `verify --quick` finds. `opened` is borrowed.
ReportSide page_side(Inspection& in, OpenedCheckpoint& opened);
/// Options of stat for a page, from those that were typed.
StatOptions page_stat_options(const Inspection& in, const OpenedCheckpoint& opened);
/// What was read for the page alone is taken out of a report that is printed.
void keep_what_was_asked(StatReport& report, const StatOptions& asked);

struct WrittenPage {
  std::string text;  // the page, where `file` is "-"
  std::uint64_t bytes = 0;
  std::vector<std::string> left_out;
};
/// `flag` names the file in messages.
WrittenPage write_page(const Inspection& in, const std::string& file, const char* flag,
                       const ReportPage& page);
/// "ckpt-inspect: wrote FILE: 1.2 MiB", for stderr.
std::string wrote_line(const std::string& file, const WrittenPage& page);

}  // namespace tessera::tools
