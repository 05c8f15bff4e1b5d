#include "tests/support/run_command.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct Pipe {
  int read = -1, write = -1;
  explicit Pipe(bool terminal = false) {
    int ends[2];
    const int failed =
        terminal ? openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr) : pipe2(ends, O_CLOEXEC);
    if (failed) throw std::runtime_error("no pipe");
    read = ends[0];
    write = ends[1];
  }
  ~Pipe() {
    close_end(read);
    close_end(write);
  }
  static void close_end(int& end) {
    if (end >= 0) close(end);
    end = -1;
  }
};

[[noreturn]] void become(const std::vector<std::string>& words,
                         const std::vector<std::string>& environment, const std::string& directory,
                         int out, int err) {
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, 0);
  dup2(out, 1);
  dup2(err, 2);
  if (!directory.empty() && chdir(directory.c_str()) != 0) _exit(126);
  std::vector<char*> argv, envp;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  for (const std::string& line : environment) envp.push_back(const_cast<char*>(line.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  std::signal(SIGPIPE, SIG_DFL);
  execve(argv[0], argv.data(), envp.data());
  _exit(127);
}

/// Appends what is there; false at the end of the stream.
bool drain(int fd, std::string& to) {
  std::array<char, 65536> buffer;
  const ssize_t n = read(fd, buffer.data(), buffer.size());
  if (n > 0) to.append(buffer.data(), static_cast<std::size_t>(n));
  return n > 0;
}

std::vector<std::string> environment_of(const CommandOptions& options) {
  std::vector<std::string> lines;
  std::map<std::string, std::string> all{{"PATH", "/usr/bin:/bin"}, {"LC_ALL", "C.UTF-8"}};
  // Sanitizers and coverage are configured through the environment.
  for (const char* name : {"ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LLVM_PROFILE_FILE"}) {
    if (const char* value = std::getenv(name)) all[name] = value;
  }
  if (options.terminal) all["PAGER"] = "cat";  // nobody is there to leave another
  for (const auto& [name, value] : options.environment) all[name] = value;
  for (const auto& [name, value] : all) lines.push_back(name + "=" + value);
  return lines;
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& words, const CommandOptions& options) {
  Pipe out(options.terminal), err;
  const std::vector<std::string> environment = environment_of(options);
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  if (options.close_stdout) Pipe::close_end(out.read);  // before anybody can write
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("fork failed");
  if (pid == 0) become(words, environment, options.directory, out.write, err.write);
  Pipe::close_end(out.write);
  Pipe::close_end(err.write);

  CommandResult result;
  bool out_open = out.read >= 0, err_open = true;
  while (out_open || err_open) {
    pollfd polls[2] = {{out_open ? out.read : -1, POLLIN, 0},
                       {err_open ? err.read : -1, POLLIN, 0}};
    const int ready = poll(polls, 2, options.meanwhile ? 2 : 50);
    if (options.meanwhile) options.meanwhile(pid);
    if (ready > 0 && polls[0].revents) out_open = drain(out.read, result.out);
    if (ready > 0 && polls[1].revents) err_open = drain(err.read, result.err);
    if (seconds() > options.timeout_seconds && !result.timed_out) {
      result.timed_out = true;
      kill(pid, SIGKILL);
    }
  }
  int status = 0;
  waitpid(pid, &status, 0);
  result.seconds = seconds();
  result.exit = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return result;
}

std::string built(const std::string& command) {
  const char* elsewhere = std::getenv("TESSERA_COMMANDS");
  return (elsewhere ? elsewhere : TESSERA_BINARY_DIR "/bin") + ("/" + command);
}

namespace {
CommandResult run_built(const std::string& command, std::vector<std::string> words,
                        const CommandOptions& options) {
  words.insert(words.begin(), built(command));
  return run_command(words, options);
}
}  // namespace

CommandResult inspect(std::vector<std::string> words, const CommandOptions& options) {
  return run_built("ckpt-inspect", std::move(words), options);
}
CommandResult reshard(std::vector<std::string> words, const CommandOptions& options) {
  return run_built("ckpt-reshard", std::move(words), options);
}
CommandResult convert(std::vector<std::string> words, const CommandOptions& options) {
  return run_built("ckpt-convert", std::move(words), options);
}

std::string sample(const std::string& relative) {
  return std::string(TESSERA_SOURCE_DIR) + "/sample_checkpoints/" + relative;
}

std::string case_path(const std::string& relative) {
  const fs::path folder = fs::path(sample(relative)) / "checkpoint";
  std::vector<fs::path> inside;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with("README")) inside.push_back(entry.path());
  }
  return (inside.size() == 1 && fs::is_regular_file(inside[0]) ? inside[0] : folder).string();
}

TemporaryFolder::TemporaryFolder() : TemporaryFolder(fs::temp_directory_path().string()) {}
TemporaryFolder::TemporaryFolder(const std::string& parent) {
  std::string pattern = (fs::path(parent) / "tessera_test_XXXXXX").string();
  if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp failed");
  path_ = pattern;
}
TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::vector<std::string> TemporaryFolder::names() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path_))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

QuickFolder::QuickFolder()
    : TemporaryFolder(::access("/dev/shm", W_OK) == 0 ? "/dev/shm"
                                                      : fs::temp_directory_path().string()) {}

}  // namespace tessera::testing
