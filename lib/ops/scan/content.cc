#include "lib/ops/scan/content.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/safetensors_header.h>

#include <algorithm>
#include <array>

#include "lib/encoding/memory_file.h"
#include "lib/encoding/utf8.h"
#include "lib/format/hdf5/helper.h"
#include "lib/format/hdf5/keras_files.h"
#include "lib/format/hdf5/report.h"

namespace tessera {
namespace {

constexpr int kMostDepth = 6;
constexpr std::uint64_t kHeadBytes = 512;
constexpr std::uint64_t kMostTextBytes = std::uint64_t{64} << 20;
constexpr std::string_view kHdf5Magic = "\x89HDF\r\n\x1a\n";
/// As JSON of Keras spells it, with and without a space.
constexpr std::array<std::string_view, 2> kLambdaTexts = {"\"class_name\": \"Lambda\"",
                                                          "\"class_name\":\"Lambda\""};

template <std::size_t n>
bool ends_with_any(std::string_view name, const std::array<std::string_view, n>& suffixes) {
  return std::ranges::any_of(suffixes, [&](std::string_view s) { return name.ends_with(s); });
}

std::string verb_of(GlobalRole role) {
  switch (role) {
    case GlobalRole::kCalled:
      return "calls";
    case GlobalRole::kMade:
      return "makes an object of";
    case GlobalRole::kChanged:
      return "changes";
    case GlobalRole::kNamed:
      break;
  }
  return "names";
}

/// The signature may stand behind a user block of 512, 1024, 2048, ... bytes.
bool is_hdf5(const ByteWindow& window, bool is_file) {
  const std::uint64_t last = is_file ? kMostTextBytes : 0;
  for (std::uint64_t at = 0; at + kHdf5Magic.size() <= window.length && at <= last;
       at = at == 0 ? 512 : 2 * at) {
    const Bytes bytes = window.read(at, kHdf5Magic.size());
    if (as_text(bytes) == kHdf5Magic) return true;
  }
  return false;
}

/// What packs bytes in a way that is not opened here.
std::string_view closed_archive(std::string_view head) {
  constexpr std::pair<std::string_view, std::string_view> kMagics[] = {{"7z\xbc\xaf\x27\x1c", "7z"},
                                                                       {std::string_view("\xfd"
                                                                                         "7zXZ\0",
                                                                                         6),
                                                                        "xz"},
                                                                       {"BZh91AY&SY", "bzip2"},
                                                                       {"\x04\x22\x4d\x18", "lz4"},
                                                                       {"Rar!\x1a\x07", "rar"}};
  for (const auto& [magic, name] : kMagics)
    if (head.starts_with(magic)) return name;
  return {};
}

std::string_view kind_of_code(std::string_view name, std::string_view head) {
  constexpr std::array<std::string_view, 5> kPython = {".py", ".pyw", ".pyx", ".pyc", ".ipynb"};
  constexpr std::array<std::string_view, 6> kNative = {".so",  ".dll", ".dylib",
                                                       ".pyd", ".exe", ".jar"};
  constexpr std::array<std::string_view, 4> kScript = {".sh", ".bat", ".ps1", ".cmd"};
  if (ends_with_any(name, kPython)) return "Python code";
  if (ends_with_any(name, kNative) || head.starts_with("\x7f"
                                                       "ELF"))
    return "compiled code";
  if (ends_with_any(name, kScript) || head.starts_with("#!")) return "a script";
  return {};
}

/// Any of `texts` in the window, whose beginning up to kMostTextBytes is looked at.
template <class Texts>
std::string_view find_text(const ByteWindow& window, const Texts& texts) {
  const Bytes bytes = window.read(0, std::min(window.length, kMostTextBytes));
  for (const std::string_view text : texts)
    if (as_text(bytes).find(text) != std::string_view::npos) return text;
  return {};
}

}  // namespace

bool is_named_as_pickle(std::string_view name) {
  constexpr std::array<std::string_view, 8> kSuffixes = {".pkl",  ".pickle", ".pt",   ".pth",
                                                         ".ckpt", ".joblib", ".dill", ".metadata"};
  return ends_with_any(name, kSuffixes);
}

void ContentScanner::add(Safety safety, std::string message, const std::string& inside) {
  out_.safety = std::max(out_.safety.value_or(Safety::kSafe), safety);
  if (!known_.insert(message).second) return;
  ScanFinding& finding = out_.findings.emplace_back();
  finding.safety = safety;
  finding.message = std::move(message);
  finding.inside = inside;
}

void ContentScanner::finish() {
  std::ranges::stable_sort(out_.findings, std::greater<>(), &ScanFinding::safety);
  if (out_.findings.size() <= ScannedFile::kMostFindings) return;
  out_.more_findings = out_.findings.size() - ScannedFile::kMostFindings;
  out_.findings.resize(ScannedFile::kMostFindings);
}

void ContentScanner::is_kind(std::string_view kind, const Place& place) {
  if (place.depth == 0 && out_.kind.empty()) out_.kind = kind;
  if (!out_.safety) out_.safety = Safety::kSafe;
}

ContentScanner::Place ContentScanner::member_of(const Place& place, std::string_view name) {
  Place out;
  out.name = name;
  out.inside = place.inside.empty() ? std::string(name) : fmt::format("{}!{}", place.inside, name);
  out.depth = place.depth + 1;
  return out;
}

void ContentScanner::scan_file(const ByteWindow& file, std::string_view name,
                               const std::vector<FilePiece>* pieces) {
  Place place;
  place.name = name;
  try {
    if (pieces != nullptr) {
      scan_pieces(file, place, *pieces);
    } else if (name.ends_with(".distcp")) {
      scan_headers(file, place);
    } else {
      scan(file, place);
    }
  } catch (const Error& error) {
    const Code code = error.code();
    if (code == Code::kCancelled || code == Code::kInternal) throw;
    add(Safety::kUnknown, "it cannot be looked into: " + error.status().message);
  }
  finish();
}

void ContentScanner::scan(const ByteWindow& window, const Place& place) {
  if (window.length == 0) return;
  if (place.depth > kMostDepth)
    return add(Safety::kUnknown, "archives inside of archives, deeper than is looked into",
               place.inside);
  const Bytes bytes = window.read(0, std::min(window.length, kHeadBytes));
  const std::string_view head = as_text(bytes);
  bool is_known = scan_container(window, place, head);
  // Programs find a zip archive by its end, whatever stands before it.
  if (place.depth == 0 && !head.starts_with("PK") && !list_zip_members(window).empty()) {
    scan_zip(window, place);
    is_known = true;
  }
  is_known = scan_text(window, place, head) || is_known;
  if (!head.starts_with("PK")) scan_pickles(window, place, is_known);
}

/// True: it is of a kind that its bytes show.
bool ContentScanner::scan_container(const ByteWindow& window, const Place& place,
                                    std::string_view head) {
  const std::string_view closed = closed_archive(head);
  if (head.starts_with("PK\x03\x04") || head.starts_with("PK\x05\x06")) {
    scan_zip(window, place);
  } else if (place.is_record) {
    return false;
  } else if (head.starts_with("\x93NUMPY")) {
    scan_npy(window, place);
  } else if (is_hdf5(window, place.depth == 0)) {
    scan_hdf5(window, place);
  } else if (looks_like_safetensors(window)) {
    scan_safetensors(window, place);
  } else if (head.starts_with("\x1f\x8b\x08") ||
             (head.size() > 2 && head[0] == '\x78' && is_named_as_pickle(place.name))) {
    is_kind("compressed file", place);
    scan_deflated(window, member_of(place, "(inside)"), DeflateForm::kZlibOrGzip);
  } else if (head.starts_with("\x28\xb5\x2f\xfd")) {
    scan_zstd(window, place);
  } else if (is_tar_header(head)) {
    scan_tar(window, place);
  } else if (!closed.empty()) {
    is_kind(closed, place);
    add(Safety::kUnknown, fmt::format("a {} archive, which is not opened here", closed),
        place.inside);
  } else {
    return false;
  }
  return true;
}

void ContentScanner::scan_safetensors(const ByteWindow& window, const Place& place) {
  is_kind("safetensors", place);
  try {
    read_safetensors_header(window, true);
  } catch (const Error& error) {
    add(Safety::kUnknown, "no valid safetensors header: " + error.status().message, place.inside);
  }
}

/// `is_known`: it is something else as well, and then only what is dangerous counts.
void ContentScanner::scan_pickles(const ByteWindow& window, const Place& place, bool is_known) {
  const bool named = is_named_as_pickle(place.name) && !place.is_record;
  const PickleScan pickle = scan_pickle(window, named && !is_known);
  if (!pickle.is_pickle()) {
    if (is_known || !named) return;
    is_kind("pickle", place);
    return add(Safety::kUnknown, fmt::format("named like a pickle, and broken: {}", pickle.problem),
               place.inside);
  }
  if (is_known && pickle.safety() != Safety::kDangerous) return;
  // Raw bytes of a tensor may begin as a pickle does.
  if (place.is_record && pickle.pickles == 0 && pickle.safety() != Safety::kDangerous) return;
  is_kind("pickle", place);
  add_uses(pickle, place);
  if (pickle.broken)
    add(Safety::kUnknown, fmt::format("a broken pickle: {}", pickle.problem), place.inside);
  for (const PickledBytes& archive : pickle.archives) scan_pickled(window, place, archive);
}

/// An archive of torch.save inside of a pickle.
void ContentScanner::scan_pickled(const ByteWindow& window, const Place& place,
                                  const PickledBytes& archive) {
  const Place inside = member_of(place, "(tensor)");
  const ByteWindow bytes = window.sub(archive.offset, archive.length);
  if (!archive.is_text) return scan(bytes, inside);
  std::string raw;
  if (archive.length > packed_limit_bytes_ ||
      !latin1_from_utf8(as_text(bytes.read(0, archive.length)), raw))
    return add(Safety::kUnknown, "a tensor that cannot be looked into", inside.inside);
  const MemoryFile file(as_bytes(raw), window.file->path());
  scan(ByteWindow::whole(file), inside);
}

void ContentScanner::add_uses(const PickleScan& pickle, const Place& place) {
  for (const PickleUse& use : pickle.uses) {
    if (use.safety == Safety::kSafe) continue;
    const std::size_t before = out_.findings.size();
    add(use.safety, fmt::format("{} {}", verb_of(use.role), printable(use.name)), place.inside);
    if (out_.findings.size() == before) continue;
    ScanFinding& finding = out_.findings.back();
    finding.name = use.name;
    finding.role = role_name(use.role);
    finding.offset = use.offset;
  }
}

bool ContentScanner::scan_text(const ByteWindow& window, const Place& place,
                               std::string_view head) {
  if (place.is_record) return false;
  const std::string_view name = place.name;
  if (const std::string_view code = kind_of_code(name, head); !code.empty()) {
    is_kind(code, place);
    add(Safety::kUnknown, fmt::format("{}, which runs when somebody runs it", code), place.inside);
    return true;
  }
  if (name.ends_with(".pb")) {
    constexpr std::array<std::string_view, 2> kFileOps = {"\x12\x08ReadFile", "\x12\tWriteFile"};
    is_kind("TensorFlow graph", place);
    if (const std::string_view op = find_text(window, kFileOps); !op.empty())
      add(Safety::kDangerous, fmt::format("its graph holds the operation {}", op.substr(2)),
          place.inside);
    if (!find_text(window, kLambdaTexts).empty())
      add(Safety::kDangerous, "runs Python code when it is loaded: a Lambda layer", place.inside);
    return true;
  }
  if (name.ends_with(".yaml") || name.ends_with(".yml")) {
    constexpr std::array<std::string_view, 2> kCalls = {"!!python/object/apply",
                                                        "!!python/object/new"};
    constexpr std::array<std::string_view, 1> kAny = {"!!python/"};
    is_kind("YAML", place);
    if (const std::string_view tag = find_text(window, kCalls); !tag.empty())
      add(Safety::kDangerous, fmt::format("calls Python by the tag {}", tag), place.inside);
    else if (!find_text(window, kAny).empty())
      add(Safety::kUnknown, "names Python objects by tags !!python/...", place.inside);
    return true;
  }
  return scan_json(window, place, head);
}

bool ContentScanner::scan_json(const ByteWindow& window, const Place& place,
                               std::string_view head) {
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  const bool is_json = place.name.ends_with(".json") && first != std::string_view::npos &&
                       (head[first] == '{' || head[first] == '[');
  if (!is_json || window.length > kMostTextBytes) return false;
  is_kind("JSON", place);
  const Bytes text = window.read(0, window.length);
  for (auto& [safety, message] : judge_keras_config(as_text(text)))
    add(safety, std::move(message), place.inside);
  return true;
}

/// Keras keeps the model's configuration as an attribute. Attributes may be pickles, too
/// (PyTables).
void ContentScanner::scan_hdf5(const ByteWindow& window, const Place& place) {
  is_kind("HDF5", place);
  const h5::FilePart part(*window.file, window.offset, window.length);
  h5::Report report;
  try {
    report = h5::parse_report(h5::describe_file(h5::find_helper(), part));
  } catch (const Error& error) {
    add(Safety::kUnknown, "it cannot be looked into: " + error.status().message, place.inside);
    if (!find_text(window, kLambdaTexts).empty())
      add(Safety::kDangerous, "runs Python code when it is loaded: a Lambda layer", place.inside);
    return;
  }
  for (const h5::NamedValue& value : report.values) {
    const bool is_text = value.value.is_string() || value.value.kind() == Value::Kind::kBytes;
    if (!is_text) continue;
    const std::string& text = value.value.as_string();
    for (auto& [safety, message] : judge_keras_config(text))
      add(safety, std::move(message), place.inside);
    const PickleScan pickle = scan_pickle_bytes(as_bytes(text));
    if (pickle.is_pickle()) add_uses(pickle, place);
  }
  for (const h5::Problem& problem : report.problems)
    if (problem.name.ends_with("_config"))
      add(Safety::kUnknown,
          fmt::format("its attribute {} cannot be read: {}", printable(problem.name), problem.why),
          place.inside);
  for (const h5::LinkInfo& link : report.links)
    if (link.kind == h5::LinkKind::kExternal)
      add(Safety::kUnknown, fmt::format("a link to another file: {}", printable(link.target)),
          place.inside);
}

}  // namespace tessera
