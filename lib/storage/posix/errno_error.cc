#include "lib/storage/posix/errno_error.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <cerrno>
#include <system_error>

namespace tessera::storage {

namespace {

Code code_of(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return Code::kNotFound;
    case EEXIST:
      return Code::kAlreadyExists;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
      return Code::kResourceExhausted;
    default:
      return Code::kIo;
  }
}

std::string_view hint_of(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free some space, or write to another file system";
    case EFBIG:
      return "raise the file size limit (ulimit -f)";
    case EMFILE:
    case ENFILE:
      return "raise the open files limit (ulimit -n)";
    default:
      return {};
  }
}

}  // namespace

void fail_errno(std::string_view verb, std::string_view path, int error) {
  // system_category is thread-safe where strerror is not.
  fail(code_of(error),
       fmt::format("cannot {} {}: {}", verb, path, std::system_category().message(error)),
       std::string(hint_of(error)));
}

}  // namespace tessera::storage
