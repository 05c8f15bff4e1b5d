#pragma once
// ForwardOrder: which units a forward of the whole tree runs, one after the other, a unit called
// twice twice. Prefetching follows it; a rank whose training forward leaves it is warned, once.
//
// Recorded in the first whole forward, and again in the first one that trains: evaluations may skip
// units and are not held against it.
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace tessera::fsdp::detail {

class Unit;

class ForwardOrder {
 public:
  /// The outermost forward begins. `whole`: it is the top unit's. `warns`: warn about a
  /// forward that leaves the recorded order.
  void begin(bool whole, bool training, bool warns);
  /// A unit's forward begins.
  void entered(Unit& unit);
  void end();
  /// What came after `unit`, which was entered last, where it is known: `count` at most.
  c10::SmallVector<std::shared_ptr<Unit>, 4> next(const Unit& unit, int count) const;

 private:
  struct Entry {
    const Unit* unit;  // compared, never followed
    std::weak_ptr<Unit> reference;
  };
  enum class Known { kNot, kEvaluation, kTraining };

  std::vector<Entry> order_, recording_;
  Known known_ = Known::kNot;
  bool records_ = false, trains_ = false, follows_ = false, warned_ = false;
  std::size_t at_ = 0;  // in order_, of the unit to come
};

}  // namespace tessera::fsdp::detail
