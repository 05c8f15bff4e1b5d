#pragma once
// A file of a stage: forwards to the real one and remembers whether everything written to it was
// synced and closed.
#include <tessera/storage/file_system.h>

#include <atomic>
#include <memory>
#include <string>

namespace tessera::storage {

/// Shared with the stage, which refuses to publish a file that is not finished.
struct StageFileState {
  std::string relative;
  std::atomic<bool> synced{false};  // since the last write
  std::atomic<bool> closed{false};
};

std::unique_ptr<WriteFile> make_stage_file(std::unique_ptr<WriteFile> file,
                                           std::shared_ptr<StageFileState> state);

}  // namespace tessera::storage
