#include "fsdp_core/runtime/put_back.h"

#include <atomic>

namespace tessera::fsdp::detail {
namespace {

std::atomic<Race> race_put_back = Race::kNone;

}  // namespace

void put_back(Race race) { race_put_back.store(race, std::memory_order_relaxed); }

bool is_put_back(Race race) { return race_put_back.load(std::memory_order_relaxed) == race; }

}  // namespace tessera::fsdp::detail
