// Commands inside another program: words as typed, the document that --format json prints.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/storage/file_system.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capi/support.h"
#include "tools/command.h"
#include "tools/failure.h"
#include "tools/version.h"

namespace tessera::capi {
namespace {

using tools::Tool;

/// What the interface decides by itself, or what only a terminal has.
void refuse_flags(const std::vector<std::string>& words) {
  constexpr std::array<std::string_view, 3> kRefused = {"--format", "--progress", "--npy"};
  for (const std::string& word : words) {
    if (word == "--") return;
    for (const std::string_view flag : kRefused)
      if (word == flag || word.starts_with(std::string(flag) + "="))
        fail(Code::kInvalidArgument, fmt::format("{} is not taken here", flag));
  }
}

struct Result {
  std::string document;
  int status = 0;
};

/// Everything that the command prints. What it reads and its arguments live until then.
Result printed(const tools::Outcome& outcome) {
  Result result{outcome.out, outcome.exit};
  if (outcome.rest) outcome.rest([&](std::string_view piece) { result.document += piece; });
  return result;
}

Result run(std::vector<std::string> words, tools::Host& host) {
  refuse_flags(words);
  const std::string verb = words.front();
  const Tool tool = verb == "convert"   ? Tool::kConvert
                    : verb == "reshard" ? Tool::kReshard
                                        : Tool::kInspect;
  if (tool != Tool::kInspect) words.erase(words.begin());
  const auto dashes = std::ranges::find(words, "--");
  words.insert(dashes, {"--format", "json"});
  const tools::Arguments arguments = tools::parse_arguments(tool, words);
  if (arguments.special != tools::Special::kNone)
    fail(Code::kInvalidArgument, "asks for a text, not for a report");
  const auto fs = make_posix_file_system();
  const tools::Screen screen;
  if (tool == Tool::kInspect) {
    if (!arguments.verb_given)
      fail(Code::kInvalidArgument, fmt::format("\"{}\" is no verb of tessera", verb));
    return printed(tools::run_inspect(arguments, *fs, screen, &host));
  }
  return printed(tools::run_convert(arguments, *fs, screen, words, nullptr, &host));
}

}  // namespace
}  // namespace tessera::capi

const char* tessera_version(void) {
  static const std::string version(tessera::tools::kVersion);
  return version.c_str();
}

tessera_error tessera_run(const char* const* words, size_t count, const tessera_watch* watch,
                          char** json, int32_t* status) {
  namespace capi = tessera::capi;
  namespace tools = tessera::tools;
  return capi::guarded([&] {
    capi::require(words, "words");
    capi::require(json, "json");
    capi::require(status, "status");
    if (count == 0) tessera::fail(tessera::Code::kInvalidArgument, "no command is given");
    std::vector<std::string> typed;
    for (std::size_t i = 0; i < count; ++i) {
      capi::require(words[i], "a word");
      typed.emplace_back(words[i]);
    }
    tools::Host host;
    capi::Result result;
    capi::run_watched(watch, host.progress, host.cancel, [&] { result = capi::run(typed, host); });
    *json = capi::text_for_caller(result.document);
    *status = result.status;
  });
}
