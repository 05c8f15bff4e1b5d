#pragma once
// One run of one verb of ckpt-inspect: what was typed, and what every verb does in the same way.
// A verb is a function in a file of its own (verbs.h); the table in run_inspect.cc names it.
#include <tessera/format/format_driver.h>
#include <tessera/ops/open.h>
#include <tessera/state/manifest.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "tools/command.h"
#include "tools/documents/json_report.h"

namespace tessera::tools {

class Inspection {
 public:
  Inspection(const Arguments& arguments, FileSystem& file_system, const Screen& shown_on, Host* in)
      : a(arguments), fs(file_system), screen(shown_on), host(in) {}

  OpenOptions open_options(const std::string& from, const std::string& root) const;
  /// Prints the notes of opening on stderr.
  OpenedCheckpoint open(const std::string& path, const OpenOptions& options) const;
  /// The first PATH.
  OpenedCheckpoint open() const;
  void print_notes(const std::vector<Note>& notes) const;

  Progress& progress() { return host != nullptr ? host->progress : progress_; }
  TransferOptions transfer();

  /// What `document` makes in the form that was asked for; `human` makes the other. Only the one is
  /// made: as values a document takes several times the memory of its report.
  template <class Document, class Human>
  std::string in_form(Document&& document, std::initializer_list<LineField> lines,
                      Human&& human) const {
    if (a.format == OutputFormat::kHuman) return human();
    if (a.format == OutputFormat::kJson) return json_document(document());
    return ndjson_document(document(), verb_name(a.verb), {lines.begin(), lines.size()});
  }

  /// Whether the answer is exit 1: not `ok`, or a warning under --strict.
  bool negative(bool ok, const std::vector<Note>& findings) const;
  /// stderr for a status other than 0 that follows a printed result.
  std::string complaint(const Status& status) const;

  const Arguments& a;
  FileSystem& fs;
  const Screen& screen;
  /// The program that runs the command inside itself, or nullptr.
  Host* const host;

 private:
  Progress progress_;
};

}  // namespace tessera::tools
