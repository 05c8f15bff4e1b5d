#include "lib/ops/verify/beside.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <utility>

#include "lib/format/probe_errors.h"
#include "lib/ops/open/path_resolve.h"

namespace tessera {
namespace {

class BesideVerifier {
 public:
  BesideVerifier(FileSystem& fs, const OpenedCheckpoint& checkpoint, const VerifyOptions& options,
                 std::vector<Note>& findings)
      : fs_(fs), checkpoint_(checkpoint), findings_(findings) {
    each_.level = options.level;
    each_.transfer = options.transfer;
    each_.open.read = options.open.read;
    each_.checks_beside = false;
  }

  VerifiedBeside look_into(const Beside& beside) {
    VerifiedBeside out{beside, false, true, 0, ""};
    const std::string path = join_path(checkpoint_.beside_folder, beside.path);
    if (beside.kind == Beside::Kind::kSidecar && beside.path.ends_with(".json")) {
      out.why = "no tensors are in it";
      return out;
    }
    try {
      const VerifyReport report = verify_checkpoint(fs_, path, each_);
      out.opened = true;
      out.tensors = report.tensors;
      out.ok = report.ok;
      for (const Note& note : report.findings)
        if (note.severity != Severity::kInfo) add(from_here(note, beside), beside);
    } catch (const Error& error) {
      fail_to_open(error.status(), beside, path, out);
    }
    return out;
  }

 private:
  /// Nobody knows whether a file of unknown use is part of the state.
  void add(Note note, const Beside& beside) {
    if (beside.kind == Beside::Kind::kOther) note.severity = Severity::kWarning;
    findings_.push_back(std::move(note));
  }

  static Note from_here(Note note, const Beside& beside) {
    const bool names_itself = note.file.empty() || note.file == beside.path;
    note.file = names_itself       ? beside.path
                : beside.is_folder ? join_path(beside.path, note.file)
                                   : note.file;
    return note;
  }

  /// A file that names what is refused can be listed all the same; a damaged one cannot.
  bool can_be_listed(const std::string& path) const {
    OpenOptions options = each_.open;
    options.read.list_globals = true;
    options.check_seal = false;
    try {
      open_checkpoint(fs_, path, options);
      return true;
    } catch (const Error& error) {
      rethrow_unless_of_content(error);
      return false;
    }
  }

  /// Objects of other classes, refused globals and strange kinds are no damage.
  void fail_to_open(const Status& status, const Beside& beside, const std::string& path,
                    VerifiedBeside& out) {
    if (status.code == Code::kCancelled || status.code == Code::kInternal ||
        status.code == Code::kResourceExhausted)
      throw Error(status);
    out.why = status.message;
    const bool is_there = status.code != Code::kNotFound;
    if (status.code == Code::kUnsupported || (is_there && can_be_listed(path))) return;
    out.ok = false;
    add({Finding::kDamagedRelated, Severity::kError,
         fmt::format("it lies next to the checkpoint and cannot be opened: {}", status.message),
         beside.path, ""},
        beside);
  }

  FileSystem& fs_;
  const OpenedCheckpoint& checkpoint_;
  std::vector<Note>& findings_;
  VerifyOptions each_;
};

}  // namespace

std::vector<VerifiedBeside> verify_beside(FileSystem& fs, const OpenedCheckpoint& checkpoint,
                                          const VerifyOptions& options,
                                          std::vector<Note>& findings) {
  std::vector<VerifiedBeside> out;
  BesideVerifier verifier(fs, checkpoint, options, findings);
  for (const Beside& beside : checkpoint.beside) out.push_back(verifier.look_into(beside));
  return out;
}

}  // namespace tessera
