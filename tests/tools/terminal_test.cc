// Colours, widths, the exit of a closed pipe, and how fast a command starts.
#include <catch2/catch.hpp>
#include <sstream>

#include "tests/support/run_command.h"
#include "tests/support/sanitized.h"
#include "tools/render/screen.h"

namespace terminal_test {

using namespace tessera::testing;
using tessera::tools::display_width;

namespace {

const char kEscape = '\x1b';
bool colored(const CommandResult& result) { return result.out.find(kEscape) != std::string::npos; }

CommandOptions on_terminal(std::map<std::string, std::string> environment) {
  CommandOptions options;
  options.terminal = true;
  environment.emplace("TERM", "xterm");
  options.environment = std::move(environment);
  return options;
}

int longest_line(const std::string& text) {
  std::istringstream lines(text);
  int longest = 0;
  for (std::string line; std::getline(lines, line);)
    longest = std::max(longest, display_width(line));
  return longest;
}

}  // namespace

TEST_CASE("colours appear on a terminal only, and not when refused") {
  const std::string path = case_path("dcp/fsdp2_w4");
  CHECK(colored(inspect({path}, on_terminal({}))));
  CHECK_FALSE(colored(inspect({path}, on_terminal({{"NO_COLOR", "1"}}))));
  CHECK_FALSE(colored(inspect({path}, on_terminal({{"TERM", "dumb"}}))));
  CHECK_FALSE(colored(inspect({path, "--no-color"}, on_terminal({}))));
  CHECK_FALSE(colored(inspect({path, "--format", "json"}, on_terminal({}))));
  CommandOptions piped;
  piped.environment = {{"TERM", "xterm"}};
  CHECK_FALSE(colored(inspect({path}, piped)));
}

TEST_CASE("output fits what COLUMNS says, and names stay whole where nobody says anything") {
  for (const std::string name :
       {"dcp/fsdp2_w4", "dcp/objects_2x2", "torchsave/adamw_zip", "safetensors/all_dtypes"}) {
    for (const std::string verb : {"summary", "ls", "stat", "optim", "hash", "verify"}) {
      INFO(name << " " << verb);
      CommandOptions usual;
      usual.environment = {{"COLUMNS", "100"}};
      CHECK(longest_line(inspect({verb, case_path(name)}, usual).out) <= 100);
      CHECK(inspect({verb, case_path(name)}).out.find("…") == std::string::npos);
      CommandOptions narrow;
      narrow.environment = {{"COLUMNS", "80"}};
      if (verb == "summary")
        CHECK(longest_line(inspect({verb, case_path(name)}, narrow).out) <= 80);
    }
    const std::string summary = inspect({case_path(name)}).out;
    CHECK(std::count(summary.begin(), summary.end(), '\n') <= 40);
  }
  for (const std::string verb :
       {"summary", "ls", "show", "stat", "optim", "hash", "verify", "diff"}) {
    CHECK(longest_line(inspect({verb, "--help"}).out) <= 100);
  }
}

TEST_CASE("a closed pipe is exit 141 without a word") {
  CommandOptions closed;
  closed.close_stdout = true;
  const CommandResult result = inspect({"ls", case_path("dcp/fsdp2_w4")}, closed);
  CHECK(result.exit == 141);
  CHECK(result.err.empty());
}

TEST_CASE("help starts in 10 ms") {
#ifdef NDEBUG
  const double plain = 0.010;
#else
  const double plain = 0.05;
#endif
  const double limit = kSanitized ? 0.5 : plain;  // a sanitizer's own start is many times that
  double best = 1;
  for (int i = 0; i < 20; ++i) best = std::min(best, inspect({"--help"}).seconds);
  CHECK(best <= limit);
}

TEST_CASE("no arguments print five example lines") {
  for (const auto& result : {inspect({}), reshard({}), convert({})}) {
    CHECK(result.exit == 0);
    CHECK(std::count(result.out.begin(), result.out.end(), '\n') == 5);
    CHECK(result.out.starts_with("ckpt-"));
  }
}

}  // namespace terminal_test
