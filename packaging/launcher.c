// ckpt-inspect and its like in a wheel, which holds no links: starts the program `tessera` that lies beside it, under the
// name this was called by.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static const char kProgram[] = "tessera";

/* The path of this file in `path`; false where it is too long or unknown. Without /proc: as it was started. */
static int own_path(char* path, size_t size) {
  const ssize_t length = readlink("/proc/self/exe", path, size - sizeof kProgram);
  if (length > 0 && length < (ssize_t)(size - sizeof kProgram)) {
    path[length] = '\0';
    return 1;
  }
  const char* started = (const char*)getauxval(AT_EXECFN);
  if (length > 0 || started == NULL || strlen(started) >= size - sizeof kProgram) return 0;
  strcpy(path, started);
  return strchr(path, '/') != NULL;
}

int main(int argc, char** argv) {
  char path[4096];
  if (argc < 1 || !own_path(path, sizeof path)) {
    fputs("tessera: cannot find its own folder (is /proc mounted?)\n", stderr);
    return 70;
  }
  char own_name[256];
  char* slash = strrchr(path, '/');
  snprintf(own_name, sizeof own_name, "%s", slash + 1);
  memcpy(slash + 1, kProgram, sizeof kProgram);
  // A shell's alias or a link may have any name; the file's own says which command it is.
  const char* called = strrchr(argv[0], '/');
  if (strcmp(called ? called + 1 : argv[0], own_name) != 0) argv[0] = own_name;
  execv(path, argv);
  fprintf(stderr, "%s: cannot start %s: %s\n", own_name, path, strerror(errno));
  return 70;
}
