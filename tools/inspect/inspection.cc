#include "tools/inspect/inspection.h"

#include <tessera/base/text.h>

#include <algorithm>
#include <cstdio>

#include "tools/failure.h"

namespace tessera::tools {

OpenOptions Inspection::open_options(const std::string& from, const std::string& root) const {
  return {from, selection(a, root), read_options(a)};
}

OpenedCheckpoint Inspection::open(const std::string& path, const OpenOptions& options) const {
  OpenedCheckpoint opened = open_checkpoint(fs, path, options);
  if (!a.quiet) print_notes(opened.notes);
  return opened;
}

OpenedCheckpoint Inspection::open() const { return open(a.words[0], open_options(a.from, a.root)); }

void Inspection::print_notes(const std::vector<Note>& notes) const {
  if (host != nullptr) return;  // they are in the document
  for (const Note& note : notes)
    std::fprintf(stderr, "ckpt-inspect: %s\n", printable(note.message).c_str());
}

TransferOptions Inspection::transfer() {
  TransferOptions options = transfer_options(a, &progress());
  if (host != nullptr) options.cancel = &host->cancel;
  return options;
}

bool Inspection::negative(bool ok, const std::vector<Note>& findings) const {
  return !ok || (a.strict && std::ranges::any_of(findings, [](const Note& note) {
                   return note.severity == Severity::kWarning;
                 }));
}

std::string Inspection::complaint(const Status& status) const {
  return failure_text("ckpt-inspect", status, exit_status(status.code), a.format);
}

}  // namespace tessera::tools
