#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/storage/stage_member.h>

#include "lib/storage/path_rules.h"

namespace tessera {

namespace {

class StageMember final : public Stage {
 public:
  StageMember(FileSystem& fs, std::string directory, std::string final_path)
      : fs_(fs), directory_(std::move(directory)), final_path_(std::move(final_path)) {}

  const std::string& directory() const override { return directory_; }
  const std::string& final_path() const override { return final_path_; }
  const std::vector<JournalEntry>& finished() const override { return finished_; }

  std::unique_ptr<WriteFile> create(const std::string& relative, IoMode mode) override {
    // "": a one-file result has the name of its final path.
    const auto components = storage::confined_components(
        relative.empty() ? storage::split_path(final_path_).name : relative, directory_);
    std::string path = directory_;
    for (std::size_t i = 0; i + 1 < components.size(); ++i) {
      path = storage::join_path(path, components[i]);
      try {
        fs_.create_directory(path);
      } catch (const Error& error) {  // another rank was first
        if (error.code() != Code::kAlreadyExists) throw;
      }
    }
    return fs_.create(storage::join_path(path, components.back()), mode);
  }

  void journal(const JournalEntry&) override {}
  void flush_journal() override {}
  void publish(const std::function<void()>&, const std::function<Bytes()>&) override {
    fail(Code::kInternal, "a member published a stage");
  }
  bool keep() override { fail(Code::kInternal, "a member kept a stage"); }
  void discard() override {}

 private:
  FileSystem& fs_;
  std::string directory_;
  std::string final_path_;
  std::vector<JournalEntry> finished_;
};

}  // namespace

std::unique_ptr<Stage> join_stage(FileSystem& fs, const std::string& directory,
                                  const std::string& final_path) {
  const auto info = fs.stat(directory);
  if (!info || info->type != FileType::kDirectory) {
    fail(Code::kIo, fmt::format("the folder {} that rank 0 created is not visible here", directory),
         "save to a file system that all ranks share");
  }
  return std::make_unique<StageMember>(fs, directory, final_path);
}

}  // namespace tessera
