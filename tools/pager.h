#pragma once
// What is longer than the screen goes through the user's pager, as git's output does: $PAGER, else
// less, which with LESS=FRX (unless LESS is set) ends by itself where all fits the screen.
#include <sys/types.h>

#include <csignal>

namespace tessera::tools {

/// While one runs, standard output of this process is the pager's input.
class Pager {
 public:
  /// Starts one if standard output is a terminal that is not dumb, and there is a pager: PAGER="" or
  /// PAGER=cat says that there shall be none.
  explicit Pager(bool wanted);
  ~Pager() { finish(); }
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  bool runs() const { return process_ > 0; }
  /// Ends its input, waits until the user has left it, and gives standard output back.
  void finish();

 private:
  pid_t process_ = 0;
  int terminal_ = -1;  // standard output as it was
  struct sigaction interrupt_ {};
};

}  // namespace tessera::tools
