#include "tools/pager.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

extern char** environ;

namespace tessera::tools {
namespace {

bool is_terminal() {
  const char* term = std::getenv("TERM");
  if (term == nullptr || std::string_view(term) == "dumb") return false;
  return isatty(STDOUT_FILENO) == 1;
}

/// Whether a shell would find a program of this name.
bool is_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return access(name.c_str(), X_OK) == 0;
  const char* path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "";
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(folder.size() + 1, rest.size()));
    if (access((std::string(folder) + "/" + name).c_str(), X_OK) == 0) return true;
  }
  return false;
}

/// What the shell is to run; "" for none.
std::string command() {
  const char* asked = std::getenv("PAGER");
  const std::string pager = asked != nullptr ? asked : "less";
  const std::size_t begin = pager.find_first_not_of(' ');
  if (begin == std::string::npos) return {};
  const std::string program = pager.substr(begin, pager.find(' ', begin) - begin);
  return program == "cat" || !is_program(program) ? std::string() : pager;
}

/// This process's variables, and what pagers need to show colours and to end on a short text.
std::vector<std::string> environment() {
  std::vector<std::string> lines;
  for (char** line = environ; *line != nullptr; ++line) lines.emplace_back(*line);
  if (std::getenv("LESS") == nullptr) lines.emplace_back("LESS=FRX");
  if (std::getenv("LV") == nullptr) lines.emplace_back("LV=-c");
  return lines;
}

pid_t spawn(const std::string& pager, int input) {
  std::string shell = "sh", flag = "-c", text = pager;
  char* const argv[] = {shell.data(), flag.data(), text.data(), nullptr};
  std::vector<std::string> lines = environment();
  std::vector<char*> envp;
  for (std::string& line : lines) envp.push_back(line.data());
  envp.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t usual;  // what this process ignores or blocks is no business of the pager
  sigemptyset(&usual);
  posix_spawnattr_setsigmask(&attributes, &usual);
  sigaddset(&usual, SIGINT);
  sigaddset(&usual, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  pid_t process = 0;
  if (posix_spawn(&process, "/bin/sh", &actions, &attributes, argv, envp.data()) != 0) process = 0;
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return process;
}

}  // namespace

Pager::Pager(bool wanted) {
  if (!wanted || !is_terminal()) return;
  const std::string pager = command();
  int ends[2];
  if (pager.empty() || pipe2(ends, O_CLOEXEC) != 0) return;
  terminal_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  process_ = terminal_ < 0 ? 0 : spawn(pager, ends[0]);
  if (process_ > 0) {
    dup2(ends[1], STDOUT_FILENO);
    // Ctrl-C is for the pager, which holds the terminal; this process ends when it does.
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGINT, &ignore, &interrupt_);
  }
  close(ends[0]);
  close(ends[1]);
}

void Pager::finish() {
  if (process_ > 0) {
    dup2(terminal_, STDOUT_FILENO);  // the last end of the pipe that writes
    while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
    sigaction(SIGINT, &interrupt_, nullptr);
  }
  if (terminal_ >= 0) close(terminal_);
  process_ = 0;
  terminal_ = -1;
}

}  // namespace tessera::tools
