#include "fsdp_core/setup/fqn_glob.h"

#include <vector>

namespace tessera::fsdp {

bool fqn_matches(std::string_view glob, std::string_view fqn) {
  // reach[n]: the glob so far matches the first n characters of the FQN.
  std::vector<bool> reach(fqn.size() + 1, false);
  reach[0] = true;
  for (std::size_t g = 0; g < glob.size();) {
    std::vector<bool> next(fqn.size() + 1, false);
    if (glob[g] == '*') {
      const bool across = g + 1 < glob.size() && glob[g + 1] == '*';
      bool open = false;
      for (std::size_t n = 0; n <= fqn.size(); ++n) {
        if (n > 0 && fqn[n - 1] == '.' && !across) open = false;
        open = open || reach[n];
        next[n] = open;
      }
      g += across ? 2 : 1;
      const bool starts_component = g == 2 || glob[g - 3] == '.';
      if (across && starts_component && g < glob.size() && glob[g] == '.') {
        // "**.": whole components, or none.
        ++g;
        std::vector<bool> after(fqn.size() + 1, false);
        for (std::size_t n = 0; n <= fqn.size(); ++n)
          after[n] = reach[n] || (n > 0 && fqn[n - 1] == '.' && next[n - 1]);
        next = after;
      }
    } else {
      for (std::size_t n = 0; n < fqn.size(); ++n)
        next[n + 1] = reach[n] && (glob[g] == '?' ? fqn[n] != '.' : glob[g] == fqn[n]);
      ++g;
    }
    reach = std::move(next);
  }
  return reach[fqn.size()];
}

}  // namespace tessera::fsdp
