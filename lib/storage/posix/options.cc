#include "lib/storage/posix/options.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <system_error>

namespace tessera::storage {

PosixOptions options_from_environment() {
  PosixOptions options;
  options.log = std::getenv("TESSERA_IO_LOG") != nullptr;
  const char* wish = std::getenv("TESSERA_IO");
  const std::string_view mode = wish == nullptr ? "" : wish;
  if (mode == "buffered") {
    options.direct = DirectPolicy::kNever;
  } else if (mode == "direct") {
    options.direct = DirectPolicy::kAlways;
  } else if (!mode.empty() && mode != "auto") {
    fail(Code::kInvalidArgument,
         fmt::format("TESSERA_IO is \"{}\"; it may be auto, direct or buffered", mode));
  }
  return options;
}

void PosixContext::log_once(const std::string& topic, const std::string& text) const {
  if (!options_.log) return;
  const std::lock_guard lock(mutex_);
  if (!logged_.insert(topic).second) return;
  const std::string line = fmt::format("tessera: io: {}\n", text);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void PosixContext::step_down(const std::string& path, int error) const {
  const std::string why = std::system_category().message(error);
  if (options_.direct == DirectPolicy::kAlways) {
    fail(Code::kUnsupported, fmt::format("{} refuses O_DIRECT: {}", path, why),
         "unset TESSERA_IO to allow buffered I/O");
  }
  log_once("direct " + why,
           fmt::format("O_DIRECT refused ({}), going on through the page cache; first at {}", why,
                       path));
}

}  // namespace tessera::storage
