#include "lib/encoding/safety/pickle_scan.h"

#include <algorithm>
#include <utility>

#include "lib/encoding/memory_file.h"
#include "lib/encoding/safety/pickle_scan_machine.h"
#include "lib/encoding/utf8.h"

namespace tessera {
namespace {

using scan::PickleScanMachine;

bool has_danger(const PickleScan& scan) { return scan.safety() == Safety::kDangerous; }

void merge(PickleScan& into, PickleScan&& more) {
  for (PickleUse& use : more.uses) {
    const auto same = std::ranges::find_if(into.uses, [&](const PickleUse& known) {
      return known.name == use.name && known.role == use.role;
    });
    if (same == into.uses.end())
      into.uses.push_back(std::move(use));
    else
      same->safety = std::max(same->safety, use.safety);
  }
  into.archives.insert(into.archives.end(), more.archives.begin(), more.archives.end());
}

/// What follows the first pickle: more of them, or raw bytes that happen to look like opcodes.
void scan_more(ScanReader& in, PickleScan& out) {
  while (!in.at_end()) {
    PickleScan next;
    PickleScanMachine machine(in, next);
    const bool whole = machine.run();
    if (whole && !machine.is_broken()) {
      ++out.pickles;
    } else if (!has_danger(next) || std::ranges::all_of(next.uses, [](const PickleUse& use) {
                 return use.safety != Safety::kDangerous || use.name.starts_with('(');
               })) {
      return;
    }
    merge(out, std::move(next));
    if (!whole) return;
  }
}

}  // namespace

bool is_plausible_name(std::string_view name) {
  return !name.empty() && name.size() < scan::kMostNameBytes && is_python_utf8(name) &&
         std::ranges::all_of(name, [](char c) { return c > ' ' || c < 0; }) &&
         (name.front() < '0' || name.front() > '9');
}

bool PickleScan::is_pickle() const {
  const bool named =
      std::ranges::any_of(uses, [](const PickleUse& use) { return !use.name.starts_with('('); });
  return pickles > 0 || (has_protocol && named) || (named && has_danger(*this));
}

Safety PickleScan::safety() const {
  Safety worst = broken ? Safety::kUnknown : Safety::kSafe;
  for (const PickleUse& use : uses) worst = std::max(worst, use.safety);
  return worst;
}

PickleScan scan_pickle(const ByteWindow& window, bool known) {
  PickleScan out;
  if (window.length == 0) return out;
  ScanReader in(window);
  if (window.length >= 2) {
    const Bytes head = window.read(0, 2);
    out.has_protocol = head[0] == std::byte{0x80} && head[1] <= std::byte{5};
  }
  PickleScanMachine machine(in, out);
  const bool whole = machine.run();
  out.pickles = whole && !machine.is_broken() ? 1 : 0;
  out.broken = machine.is_broken();
  out.problem = machine.problem();
  if (whole) {
    scan_more(in, out);
  } else if (known || out.has_protocol) {
    search_names(window, in.position(), out);
  }
  return out;
}

PickleScan scan_pickle_bytes(ByteView bytes) {
  const MemoryFile file(bytes, "");
  return scan_pickle(ByteWindow::whole(file));
}

}  // namespace tessera
