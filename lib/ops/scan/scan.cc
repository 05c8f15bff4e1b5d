#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/base/text.h>
#include <tessera/encoding/byte_window.h>
#include <tessera/ops/scan.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "lib/format/torch_dcp/metadata.h"
#include "lib/ops/open/path_resolve.h"
#include "lib/ops/scan/content.h"

namespace tessera {
namespace {

constexpr int kMostFolders = 64;  // one below the other
constexpr std::uint64_t kMostMetadataBytes = std::uint64_t{1} << 30;

/// Where the items of a folder's .distcp files lie, by its `.metadata`.
using PiecesOfFile = std::map<std::string, std::vector<FilePiece>>;

/// A file to look into, in a folder that is held open.
struct Job {
  std::shared_ptr<const Directory> directory;
  std::string name;  // relative to it
  std::shared_ptr<const PiecesOfFile> pieces;
  std::string stop;  // why it is not opened; "" = it is
};

class Scanner {
 public:
  Scanner(FileSystem& fs, const ScanOptions& options) : fs_(fs), options_(options) {}

  ScanReport run(std::span<const std::string> paths) {
    for (const std::string& path : paths) {
      report_.paths.push_back(path);
      enter(path);
    }
    parallel_for(jobs_.size(), options_.threads,
                 [&](std::size_t i, int) { look(jobs_[i], report_.files[i]); });
    find_twins();
    count();
    return std::move(report_);
  }

 private:
  void enter(const std::string& path) {
    const FileInfo info = PathResolver(fs_, "").require(path);
    root_ = fs_.canonical(path);
    if (info.type == FileType::kDirectory) {
      walk(fs_.open_directory(path), path, root_, "", 0);
      return;
    }
    const auto [folder, name] = split_path(root_);
    add_job({fs_.open_directory(folder), name, nullptr, ""}, path);
  }

  void add_job(Job job, const std::string& display) {
    jobs_.push_back(std::move(job));
    report_.files.emplace_back().path = display;
  }

  void walk(const std::shared_ptr<const Directory>& root, const std::string& display,
            const std::string& canonical, const std::string& below, int depth) {
    std::vector<FileInfo> entries;
    try {
      entries = root->list(below);
    } catch (const Error& error) {
      return add_job({nullptr, "", nullptr, error.status().message}, join_path(display, below));
    }
    const bool has_metadata =
        std::ranges::find(entries, ".metadata", &FileInfo::name) != entries.end();
    const auto pieces = has_metadata ? read_pieces(*root, below) : nullptr;
    for (const FileInfo& entry : entries) {
      const std::string name = below.empty() ? entry.name : join_path(below, entry.name);
      const std::string shown = join_path(display, name);
      switch (entry.type) {
        case FileType::kRegular:
          add_job({root, name, pieces, ""}, shown);
          break;
        case FileType::kDirectory:
          if (depth < kMostFolders)
            walk(root, display, canonical, name, depth + 1);
          else
            add_job({nullptr, "", nullptr, "folders too deep to be looked into"}, shown);
          break;
        case FileType::kSymlink:
          follow(join_path(canonical, name), shown);
          break;
        case FileType::kOther:
          add_job({nullptr, "", nullptr, ""}, shown);  // a device or pipe: not judged
          break;
      }
    }
  }

  /// A link to a file below PATH is seen where that lies. One that leads elsewhere is looked into,
  /// and named; the cache of the Hugging Face hub is made of such links: snapshots/... -> blobs/...
  void follow(const std::string& path, const std::string& shown) {
    std::optional<FileInfo> info;
    std::string target;
    try {
      info = fs_.stat(path);
      if (info) target = fs_.canonical(path);
    } catch (const Error&) {
      info.reset();
    }
    if (!info) {
      report_.links.push_back({shown, "", false});
      return add_job({nullptr, "", nullptr, ""}, shown);
    }
    if (target == root_ || target.starts_with(root_ + "/")) return;
    report_.links.push_back({shown, target, true});
    if (info->type == FileType::kDirectory)
      return add_job({nullptr, "", nullptr,
                      fmt::format("a link to a folder elsewhere: {}", printable(target))},
                     shown);
    const auto [folder, name] = split_path(target);
    add_job({fs_.open_directory(folder), name, nullptr, ""}, shown);
    if (is_hub_blob(target)) return;
    ScannedFile& file = report_.files.back();
    ContentScanner(file, 0).add(
        Safety::kUnknown, fmt::format("a link that leaves the folder: {}", printable(target)));
  }

  bool is_hub_blob(const std::string& target) const {
    const std::size_t at = root_.rfind("/snapshots/");
    return at != std::string::npos && target.starts_with(root_.substr(0, at) + "/blobs/");
  }

  std::shared_ptr<const PiecesOfFile> read_pieces(const Directory& root, const std::string& below) {
    try {
      const std::string name = below.empty() ? ".metadata" : join_path(below, ".metadata");
      const auto file = root.open(name);
      if (file->size_bytes() > kMostMetadataBytes) return nullptr;
      const Bytes bytes = ByteWindow::whole(*file).read(0, file->size_bytes());
      const dcp::DcpMetadata metadata = dcp::parse_metadata(bytes, name, true);
      auto out = std::make_shared<PiecesOfFile>();
      for (const dcp::DcpStorage& item : metadata.storage) {
        const std::string& of = metadata.files[item.file];
        (*out)[below.empty() ? of : join_path(below, of)].push_back({item.offset, item.length});
      }
      for (auto& [path, pieces] : *out) {
        std::ranges::sort(pieces);
        pieces.erase(std::ranges::unique(pieces).begin(), pieces.end());
      }
      return out;
    } catch (const Error&) {
      return nullptr;  // the file itself is judged; its items are found by their look
    }
  }

  void look(const Job& job, ScannedFile& out) const {
    ContentScanner content(out, options_.memory_limit_bytes / 4);
    if (!job.directory) {
      if (!job.stop.empty()) content.add(Safety::kUnknown, job.stop);
      return;
    }
    try {
      const auto file = job.directory->open(job.name);
      const std::vector<FilePiece>* pieces = nullptr;
      if (job.pieces)
        if (const auto found = job.pieces->find(job.name); found != job.pieces->end())
          pieces = &found->second;
      content.scan_file(ByteWindow::whole(*file), out.path, pieces);
    } catch (const Error& error) {
      if (error.code() == Code::kCancelled || error.code() == Code::kInternal) throw;
      content.add(Safety::kUnknown, "it cannot be read: " + error.status().message);
    }
  }

  /// What frameworks call the same weights as safetensors: pytorch_model.bin is model.safetensors,
  /// adapter_model.bin is adapter_model.safetensors.
  static std::vector<std::string> twin_names(const std::string& path) {
    constexpr std::array<std::string_view, 7> kSuffixes = {".bin", ".pt", ".pth",  ".ckpt",
                                                           ".pkl", ".h5", ".keras"};
    const auto [folder, name] = split_path(path);
    const auto suffix = std::ranges::find_if(
        kSuffixes, [&, n = std::string_view(name)](std::string_view s) { return n.ends_with(s); });
    if (suffix == kSuffixes.end()) return {};
    const std::string stem = name.substr(0, name.size() - suffix->size());
    std::vector<std::string> out{stem + ".safetensors"};
    for (const std::string prefix : {"pytorch_", "tf_"})
      if (stem.starts_with(prefix)) out.push_back(stem.substr(prefix.size()) + ".safetensors");
    if (folder != "." || path.starts_with("./"))
      for (std::string& twin : out) twin = join_path(folder, twin);
    return out;
  }

  void find_twins() {
    std::map<std::string_view, const ScannedFile*> safe;
    for (const ScannedFile& file : report_.files)
      if (file.safety == Safety::kSafe && file.kind == "safetensors") safe[file.path] = &file;
    for (ScannedFile& file : report_.files) {
      if (file.safety.value_or(Safety::kSafe) == Safety::kSafe) continue;
      for (const std::string& twin : twin_names(file.path))
        if (file.use_instead.empty() && safe.contains(twin)) file.use_instead = twin;
    }
  }

  void count() {
    std::ranges::stable_sort(report_.files, {}, &ScannedFile::path);
    for (const ScannedFile& file : report_.files) {
      if (!file.safety) {
        ++report_.not_judged;
        continue;
      }
      report_.safety = std::max(report_.safety, *file.safety);
      ++(*file.safety == Safety::kSafe      ? report_.safe
         : *file.safety == Safety::kUnknown ? report_.unknown
                                            : report_.dangerous);
    }
    if (report_.safe + report_.unknown + report_.dangerous == 0) report_.safety = Safety::kUnknown;
  }

  FileSystem& fs_;
  const ScanOptions& options_;
  ScanReport report_;
  std::string root_;  // of the PATH at hand, canonical
  std::vector<Job> jobs_;
};

}  // namespace

ScanReport scan_files(FileSystem& fs, std::span<const std::string> paths,
                      const ScanOptions& options) {
  return Scanner(fs, options).run(paths);
}

}  // namespace tessera
