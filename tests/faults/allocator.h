#pragma once
// An allocator in front of the C library's that can refuse. When watch_allocations() is on, each
// allocation of the one thread there is forks: the child is refused that allocation and goes on to
// its end; the parent goes on undisturbed. So every allocation of a run fails once, and the run is
// done only once.
#include <cstdint>

namespace tessera::faults {

struct AllocationReport {
  std::uint64_t allocations = 0;  // seen while watching
  std::uint64_t refused = 0;      // in a child of its own
  std::uint64_t as_hoped = 0;     // children that ended with 0 or 6
  int first_bad_status = 0;       // of a child that did not, as waitpid tells; 0: none
  std::uint64_t first_bad_allocation = 0;
};

/// `at_most`: no more children from then on. `first` allocations are let pass.
void watch_allocations(std::uint64_t first, std::uint64_t at_most);
AllocationReport stop_watching_allocations();
/// True in a child that was refused an allocation.
bool in_refused_child();

}  // namespace tessera::faults
