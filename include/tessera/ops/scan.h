#pragma once
// scan: what would loading these files do? Every file below each PATH, whatever its format and
// whatever a checkpoint reader would choose: pickles alone, in torch archives, zips, tars, NumPy
// files and DCP items, several in a row or inside of each other; Keras models with Lambda layers;
// code; links that leave the folder. Nothing is imported, called or unpacked to disk.
//
//   safe        plain data
//   unknown     objects of classes, code that runs only when asked for, what cannot be looked into
//   dangerous   calls named (encoding/pickle_safety.h has the rules; docs/safety.md the tables)
//   (none)      not judged: a file of no kind known here
//
// A file's verdict is that of the worst thing in it. Errors: kNotFound for an absent PATH; what
// cannot be read of a file is a finding of it.
#include <tessera/encoding/pickle_safety.h>
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera {

struct ScanFinding {
  Safety safety = Safety::kUnknown;
  std::string message;       // "calls pty.spawn"
  std::string name;          // the global, "" for what is no pickle's
  std::string role;          // role_name(), with `name`
  std::string inside;        // the member of an archive, "" the file itself
  std::uint64_t offset = 0;  // in the file or member
};

struct ScannedFile {
  std::string path;                   // as the user would name it
  std::string kind;                   // "torch archive", "pickle", "safetensors", ...; "" unknown
  std::optional<Safety> safety;       // nullopt: not judged
  std::vector<ScanFinding> findings;  // worst first; at most kMostFindings
  std::uint64_t more_findings = 0;
  std::string use_instead;  // a safe file beside it with the same content, by its name

  static constexpr std::size_t kMostFindings = 200;
};

/// A symbolic link below PATH.
struct ScannedLink {
  std::string path;
  std::string target;   // resolved; "" when it leads nowhere
  bool leaves = false;  // the folder that PATH names
};

struct ScanOptions {
  std::uint64_t memory_limit_bytes = std::uint64_t{1} << 30;  // bounds what is decompressed
  int threads = 1;
};

struct ScanReport {
  std::vector<std::string> paths;
  /// The worst verdict of all files; kUnknown if none could be judged.
  Safety safety = Safety::kSafe;
  std::vector<ScannedFile> files;  // by path
  std::vector<ScannedLink> links;  // that leave the folder, or lead nowhere
  std::uint64_t safe = 0, unknown = 0, dangerous = 0, not_judged = 0;
};

ScanReport scan_files(FileSystem& fs, std::span<const std::string> paths,
                      const ScanOptions& options = {});

}  // namespace tessera
