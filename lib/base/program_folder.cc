#include "lib/base/program_folder.h"

#include <sys/auxv.h>
#include <unistd.h>

namespace tessera {

std::string program_folder() {
  std::string path(4096, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length > 0) {
    path.resize(static_cast<std::size_t>(length));
  } else {  // an empty root: the path that it was started by
    const auto* started = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
    path = started != nullptr ? started : "";
  }
  const std::size_t slash = path.rfind('/');
  return slash == path.npos ? std::string() : path.substr(0, slash);
}

}  // namespace tessera
