// browse: one or two checkpoints on the terminal, until the user leaves.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include "tools/browse/browser.h"
#include "tools/browse/reader.h"
#include "tools/browse/terminal.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/verbs.h"

namespace tessera::tools {

Outcome run_browse(Inspection& in) {
  if (in.a.format != OutputFormat::kHuman)
    fail(Code::kInvalidArgument, "browse is for people: it has no other --format",
         "ckpt-inspect ls --format json has every tensor");
  if (in.host != nullptr) fail(Code::kInvalidArgument, "browse needs a terminal of its own");
  require_terminal();
  std::vector<OpenedCheckpoint> sides;
  for (const std::string& path : in.a.words)
    sides.push_back(in.open(path, in.open_options(in.a.from, in.a.root)));
  const bool two = sides.size() > 1;
  BrowseList list(sides[0].manifest, two ? &sides[1].manifest : nullptr);
  const BrowseTitle title =
      two ? BrowseTitle{sides[0].display, sides[1].display}
          : BrowseTitle{fmt::format("{}  {}", sides[0].display, sides[0].manifest.format), ""};
  BrowseReader reader(std::move(sides), list.items(), transfer_options(in.a, nullptr));
  Browser browser(std::move(list), title);
  play(browser, reader, in.screen.color);
  Outcome outcome;
  for (const std::string& name : browser.marked_names()) outcome.out += printable(name) + "\n";
  return outcome;
}

}  // namespace tessera::tools
