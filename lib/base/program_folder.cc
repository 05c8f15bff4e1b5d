#include "lib/base/program_folder.h"

#include <dlfcn.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <string_view>

namespace tessera {
namespace {

/// The shared library that this code is part of; "" in a program of ours.
std::string library_path() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&library_path), &info) == 0 ||
      info.dli_fname == nullptr)
    return {};
  const std::string_view path = info.dli_fname;
  return path.find("/libtessera.so") == path.npos ? std::string() : std::string(path);
}

}  // namespace

std::string program_folder() {
  if (const std::string library = library_path(); !library.empty())
    return library.substr(0, library.rfind('/'));
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
