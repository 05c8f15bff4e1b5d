#include "lib/storage/stage_file.h"

namespace tessera::storage {

namespace {

class StageFile final : public WriteFile {
 public:
  StageFile(std::unique_ptr<WriteFile> file, std::shared_ptr<StageFileState> state)
      : file_(std::move(file)), state_(std::move(state)) {}

  const std::string& path() const override { return file_->path(); }
  void write_at(std::uint64_t offset, ByteView data) override {
    state_->synced = false;
    file_->write_at(offset, data);
  }
  void allocate(std::uint64_t size_bytes) override {
    state_->synced = false;
    file_->allocate(size_bytes);
  }
  void sync() override {
    file_->sync();
    state_->synced = true;
  }
  void close() override {
    file_->close();
    state_->closed = true;
  }

 private:
  std::unique_ptr<WriteFile> file_;
  std::shared_ptr<StageFileState> state_;
};

}  // namespace

std::unique_ptr<WriteFile> make_stage_file(std::unique_ptr<WriteFile> file,
                                           std::shared_ptr<StageFileState> state) {
  return std::make_unique<StageFile>(std::move(file), std::move(state));
}

}  // namespace tessera::storage
