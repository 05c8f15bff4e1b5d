#pragma once
// Linux calls for which musl, or glibc before 2.28, has no function.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#ifdef __GLIBC__
#if __GLIBC_PREREQ(2, 28)
#define TESSERA_GLIBC_HAS_NEWER_CALLS
#endif
#endif

#ifndef STATX_ATTR_MOUNT_ROOT  // older headers than the kernel
#define STATX_ATTR_MOUNT_ROOT 0x2000
#endif

namespace tessera::storage {

/// renameat2() of paths. 0, or -1 and errno.
inline int rename_with_flags(const std::string& from, const std::string& to, unsigned flags) {
#ifdef TESSERA_GLIBC_HAS_NEWER_CALLS
  return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags);
#else
  return static_cast<int>(
      ::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags));
#endif
}

/// statx() of an open file. 0, or -1 and errno.
inline int ask_statx(int fd, int flags, unsigned mask, struct statx& status) {
#ifdef TESSERA_GLIBC_HAS_NEWER_CALLS
  return ::statx(fd, "", flags, mask, &status);
#else
  return static_cast<int>(::syscall(SYS_statx, fd, "", flags, mask, &status));
#endif
}

}  // namespace tessera::storage
