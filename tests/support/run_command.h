#pragma once
// Runs a built command as a subprocess and captures what it says.
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::testing {

struct CommandResult {
  int exit = -1;  // status, or -signal when a signal ended it
  bool timed_out = false;
  std::string out, err;
  double seconds = 0;
};

struct CommandOptions {
  std::map<std::string, std::string> environment;  // added to a small fixed one
  std::string directory;                           // where it starts; "" = here
  double timeout_seconds = 60;
  bool close_stdout = false;               // the reader of its stdout is gone from the start
  bool terminal = false;                   // its stdout is a terminal
  std::function<void(int pid)> meanwhile;  // called over and over (every 2 ms) while it runs
};

/// `words[0]` is the path of the program.
CommandResult run_command(const std::vector<std::string>& words,
                          const CommandOptions& options = {});

/// One of our commands, from the build folder, or from the folder that TESSERA_COMMANDS names.
std::string built(const std::string& command);
CommandResult inspect(std::vector<std::string> words, const CommandOptions& options = {});
CommandResult reshard(std::vector<std::string> words, const CommandOptions& options = {});
CommandResult convert(std::vector<std::string> words, const CommandOptions& options = {});

/// sample_checkpoints/<relative>
std::string sample(const std::string& relative);
/// The checkpoint of a case: its folder, or the one file in it.
std::string case_path(const std::string& relative);

/// A fresh folder, removed with everything below it by the destructor.
class TemporaryFolder {
 public:
  TemporaryFolder();  // where temporary files go
  explicit TemporaryFolder(const std::string& parent);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// Names in it, hidden ones too, sorted.
  std::vector<std::string> names() const;

 private:
  std::string path_;
};

/// In memory, where the machine has such a file system: for tests that write much or often.
class QuickFolder : public TemporaryFolder {
 public:
  QuickFolder();
};

}  // namespace tessera::testing
