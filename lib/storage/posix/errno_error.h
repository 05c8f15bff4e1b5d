#pragma once
// From an errno to a thrown Error, one mapping for the real and the faulty file system.
#include <string_view>

namespace tessera::storage {

/// Throws "cannot <verb> <path>: <strerror>": ENOENT and ENOTDIR kNotFound, EEXIST kAlreadyExists,
/// ENOSPC, EDQUOT, EFBIG and ENOMEM kResourceExhausted, everything else kIo.
[[noreturn]] void fail_errno(std::string_view verb, std::string_view path, int error);

}  // namespace tessera::storage
