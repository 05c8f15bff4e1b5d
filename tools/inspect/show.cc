// show: one tensor or one value, in full or in part, or as .npy.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include "tools/documents/documents.h"
#include "tools/inspect/inspection.h"
#include "tools/inspect/verbs.h"
#include "tools/new_file.h"
#include "tools/render/render.h"

namespace tessera::tools {
Outcome run_show(Inspection& in) {
  OpenOptions needed = in.open_options(in.a.from, in.a.root);
  needed.needed_name = in.a.words[1];
  OpenedCheckpoint opened = in.open(in.a.words[0], needed);
  ShowOptions options;
  if (!in.a.slice.empty()) options.slice = parse_slice(in.a.slice);
  options.dequantized = in.a.dequantized;
  options.npy = !in.a.npy.empty();
  options.transfer = in.transfer();
  const ShowReport report = show(opened, in.a.words[1], options);
  if (options.npy && report.what != ShowReport::What::kTensor) {
    fail(Code::kInvalidArgument, fmt::format("--npy: \"{}\" is no tensor", printable(report.name)));
  }
  if (in.a.npy == "-") return {std::string(as_text(report.npy)), 0, {}};
  Outcome outcome;
  outcome.out = in.in_form([&] { return show_document(report); }, {},
                           [&] { return render_show(report, in.screen); });
  if (options.npy) {
    write_new_file(in.a.npy, "--npy", false, in.host == nullptr,
                   [&](const Sink& sink) { sink(as_text(report.npy)); });
    const std::string note = report.npy_note.empty() ? "" : " (" + report.npy_note + ")";
    outcome.err = fmt::format("ckpt-inspect: wrote {}{}\n", printable(in.a.npy), note);
  }
  return outcome;
}

}  // namespace tessera::tools
