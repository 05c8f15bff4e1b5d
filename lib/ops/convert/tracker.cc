#include "lib/ops/convert/tracker.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/megatron_torch.h>
#include <tessera/format/registry.h>
#include <tessera/storage/checksum.h>
#include <tessera/storage/stage.h>

#include <charconv>
#include <span>
#include <utility>

namespace tessera {
namespace {

constexpr std::string_view kRelease = "release";
constexpr std::uint64_t kMostTrackerBytes = 4096;
constexpr std::size_t kIterationDigits = 7;  // iter_0000100; more where the number needs them
constexpr std::string_view kNoFile = "(no regular file)";

std::optional<std::int64_t> iteration(std::string_view digits) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || value < 0)
    return std::nullopt;
  return value;
}

/// What the tracker says of a folder of this name: "iter_0000100" -> "100".
std::optional<std::string> tracked_text(std::string_view name) {
  constexpr std::string_view kPrefix = kTracker.numbered;
  if (name == kRelease) return std::string(kRelease);
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto number = iteration(name.substr(kPrefix.size()));
  // Any other number of digits is a folder that Megatron does not find.
  if (!number || name != fmt::format("iter_{:0{}}", *number, kIterationDigits)) return std::nullopt;
  return fmt::format("{}", *number);
}

/// One word of a POSIX shell.
std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string trimmed(std::string_view text) {
  const std::string_view blank = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(blank);
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(blank) - begin + 1));
}

std::string read_tracker(const Directory& directory) {
  const auto info = directory.stat(kTracker.name);
  if (info->type != FileType::kRegular || info->size_bytes > kMostTrackerBytes)
    return std::string(kNoFile);
  std::string text(static_cast<std::size_t>(info->size_bytes), '\0');
  directory.open(kTracker.name)->read_at(0, std::as_writable_bytes(std::span(text)));
  return trimmed(text);
}

}  // namespace

std::optional<Tracker> Tracker::of(std::string_view format, const std::string& destination) {
  if (capabilities_of(format).pointer.name != kTracker.name) return std::nullopt;
  const std::size_t slash = destination.find_last_of('/');
  if (slash == std::string::npos) return std::nullopt;
  auto text = tracked_text(std::string_view(destination).substr(slash + 1));
  if (!text) return std::nullopt;
  return Tracker(slash == 0 ? "/" : destination.substr(0, slash), std::move(*text));
}

std::string Tracker::path() const {
  return fmt::format("{}{}{}", folder_, folder_.ends_with('/') ? "" : "/", kTracker.name);
}

std::string Tracker::command() const {
  return fmt::format("printf {} > {}", text_, quoted(path()));
}

Tracker::Decision Tracker::decide(const FileSystem& fs) const {
  const auto directory = fs.open_directory(folder_);
  if (!directory->stat(kTracker.name)) return {};
  Decision made{Action::kRefuse, read_tracker(*directory)};
  if (made.found == text_) made.action = Action::kKeep;
  const auto old = iteration(made.found), fresh = iteration(text_);
  if (old && fresh && *old < *fresh) made.action = Action::kWrite;
  return made;
}

Note Tracker::note(const Decision& decision, bool planned) const {
  Note out{Finding::kTracker, Severity::kInfo, "", path(), ""};
  const std::string found = printable(decision.found);
  if (decision.action == Action::kRefuse) {
    out.severity = Severity::kWarning;
    out.message = fmt::format(
        "it names {}, not {}, and {} left alone: Megatron loads this result "
        "only after: {}",
        found.empty() ? "nothing" : found, text_, planned ? "would be" : "was", command());
  } else if (decision.action == Action::kKeep) {
    out.message = fmt::format("it names {} already", text_);
  } else {
    const std::string before = found.empty() ? "" : fmt::format(" (it named {})", found);
    out.message =
        fmt::format("{} {}{}: Megatron loads this result",
                    planned ? "would be written, naming" : "written, names", text_, before);
  }
  return out;
}

Note Tracker::plan(const FileSystem& fs) const { return note(decide(fs), true); }

Note Tracker::publish(FileSystem& fs) const {
  try {
    const Decision decision = decide(fs);
    if (decision.action != Action::kWrite) return note(decision, false);
    Sha256 hash;
    for (const std::string& part : {std::string("tessera.tracker/1"), path(), text_})
      hash.update(as_bytes(part));
    StageOptions options;
    options.single_file = true;
    options.force = fs.stat(path()).has_value();
    const auto stage = Stage::open(fs, path(), hex(hash.finish()), options);
    const auto file = stage->create("", IoMode::kBuffered);
    file->write_at(0, as_bytes(text_));
    file->sync();
    file->close();
    const auto unchanged = [&] {
      if (decide(fs).found != decision.found)
        fail(Code::kAlreadyExists, "another process wrote it in the meantime");
    };
    stage->publish(unchanged, nullptr);
    return note(decision, false);
  } catch (const Error& error) {
    Status status = error.status();
    status.message =
        fmt::format("the result is complete, but {} was not written: {}", path(), status.message);
    status.hint = fmt::format("write it by hand: {}", command());
    throw Error(std::move(status));
  }
}

}  // namespace tessera
