#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "tests/fsdp/comm_processes.h"

extern char** environ;

namespace tessera::fsdp::testing {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "tessera-ranks-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

pid_t start(const ProcessJob& job, int rank, int port, const fs::path& folder) {
  std::map<std::string, std::string> variables = {
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(job.size)},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)},
      {"OMP_NUM_THREADS", "1"},
      {"TORCH_CPP_LOG_LEVEL", "ERROR"},
      {"TESSERA_SCENARIO", job.scenario},
      {"TESSERA_REPORT", (folder / std::to_string(rank)).string()}};
  for (const auto& [name, value] : job.environment) variables[name] = value;
  std::vector<std::string> lines;
  for (char** entry = environ; *entry; ++entry) {
    const std::string line = *entry;
    if (!variables.contains(line.substr(0, line.find('=')))) lines.push_back(line);
  }
  for (const auto& [name, value] : variables) lines.push_back(name + "=" + value);
  std::vector<char*> env;
  for (std::string& line : lines) env.push_back(line.data());
  env.push_back(nullptr);
  std::vector<std::string> words = {"/proc/self/exe", job.test};
  words.insert(words.end(), job.arguments.begin(), job.arguments.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const std::string log = (folder / (std::to_string(rank) + ".log")).string();
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = 0;
  const std::string self = fs::read_symlink("/proc/self/exe").string();
  const int error =
      posix_spawn(&pid, self.c_str(), &actions, nullptr, arguments.data(), env.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("posix_spawn failed");
  return pid;
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw std::runtime_error("no free port");
  close(fd);
  return ntohs(address.sin_port);
}

std::vector<RankResult> run_processes(const ProcessJob& job) {
  const TemporaryFolder folder;
  const int port = free_port();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < job.size; ++rank) pids.push_back(start(job, rank, port, folder.path()));
  std::vector<RankResult> results(job.size);
  const auto deadline = Clock::now() + job.deadline;
  std::size_t running = pids.size();
  while (running > 0) {
    for (int rank = 0; rank < job.size; ++rank) {
      int status = 0;
      if (pids[rank] == 0 || waitpid(pids[rank], &status, WNOHANG) <= 0) continue;
      pids[rank] = 0;
      --running;
      if (WIFEXITED(status)) results[rank].exit_code = WEXITSTATUS(status);
      if (WIFSIGNALED(status)) results[rank].signal = WTERMSIG(status);
    }
    const bool only_stopped =
        running == job.stopped.size() && std::all_of(job.stopped.begin(), job.stopped.end(),
                                                     [&](int rank) { return pids[rank] != 0; });
    if (Clock::now() > deadline || only_stopped)
      for (int rank = 0; rank < job.size; ++rank)
        if (pids[rank] != 0) {
          results[rank].killed = !only_stopped;
          kill(pids[rank], SIGKILL);
        }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (int rank = 0; rank < job.size; ++rank) {
    results[rank].report = text_of(folder.path() / std::to_string(rank));
    results[rank].log = text_of(folder.path() / (std::to_string(rank) + ".log"));
    if (results[rank].exit_code != 0 && results[rank].report.empty())
      results[rank].report = "log: " + results[rank].log;
  }
  return results;
}

std::string scenario() {
  const char* name = std::getenv("TESSERA_SCENARIO");
  return name ? name : "";
}

void report(const std::string& text) {
  std::ofstream(std::getenv("TESSERA_REPORT"), std::ios::app) << text;
}

}  // namespace tessera::fsdp::testing
