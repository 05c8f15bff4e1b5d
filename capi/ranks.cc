// A job's own means of communication as a RankGroup: the calls of a program in another language.
#include "capi/ranks.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <string>
#include <utility>
#include <vector>

#include "capi/support.h"

struct tessera_gathered {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<bool> there;
  std::string why;   // of tessera_gathered_fail()
  bool bad = false;  // a rank that is none, or one twice
};

namespace tessera::capi {
namespace {

class CalledRanks final : public RankGroup {
 public:
  explicit CalledRanks(const tessera_rank_calls& calls) : calls_(calls) {}
  ~CalledRanks() override {
    kept().reset();  // a save in the background talks to the ranks until it ends
    if (calls_.release != nullptr) calls_.release(calls_.user);
  }
  CalledRanks(const CalledRanks&) = delete;
  CalledRanks& operator=(const CalledRanks&) = delete;

  int rank() const override { return calls_.rank; }
  int size() const override { return calls_.size; }

  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) override {
    return call(calls_.all_gather, bytes, /*everywhere=*/true);
  }
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> bytes) override {
    if (calls_.gather == nullptr) return RankGroup::gather(bytes);
    return call(calls_.gather, bytes, rank() == 0);
  }

  std::unique_ptr<RankGroup> duplicate() override {
    if (calls_.duplicate == nullptr) return RankGroup::duplicate();
    tessera_rank_calls made{};
    if (calls_.duplicate(calls_.user, &made) != 0)
      fail(Code::kIo, "the group of ranks could not be duplicated");
    return make_ranks(made);
  }

 private:
  std::vector<std::vector<std::byte>> call(int (*function)(void*, const void*, std::size_t,
                                                           tessera_gathered*),
                                           std::span<const std::byte> mine, bool receives) {
    const auto size = static_cast<std::size_t>(calls_.size);
    tessera_gathered all{
        std::vector<std::vector<std::byte>>(size), std::vector<bool>(size), {}, false};
    const int result = function(calls_.user, mine.data(), mine.size(), &all);
    if (result != 0)
      fail(Code::kIo, all.why.empty() ? "the ranks' communication failed"
                                      : "the ranks' communication failed: " + all.why);
    if (!receives) return {};
    for (std::size_t r = 0; r < size; ++r)
      if (!all.there[r] || all.bad)
        fail(Code::kInvalidArgument,
             fmt::format("the ranks' communication did not give each of {} ranks' bytes once",
                         size));
    return std::move(all.bytes);
  }

  tessera_rank_calls calls_;
};

}  // namespace

std::unique_ptr<RankGroup> make_ranks(const tessera_rank_calls& calls) {
  if (calls.all_gather == nullptr || calls.size < 1 || calls.rank < 0 || calls.rank >= calls.size)
    fail(Code::kInvalidArgument,
         fmt::format("rank {} of {} with{} all_gather is no group", calls.rank, calls.size,
                     calls.all_gather == nullptr ? "out" : ""));
  return std::make_unique<CalledRanks>(calls);
}

}  // namespace tessera::capi

namespace capi = tessera::capi;

void tessera_gathered_put(tessera_gathered* all, int32_t rank, const void* data, size_t bytes) {
  if (all == nullptr) return;
  const auto at = static_cast<std::size_t>(rank);
  if (rank < 0 || at >= all->bytes.size() || all->there[at] || (data == nullptr && bytes != 0)) {
    all->bad = true;
    return;
  }
  try {
    const auto* first = static_cast<const std::byte*>(data);
    all->bytes[at].assign(first, first + bytes);
    all->there[at] = true;
  } catch (...) {  // no memory: the rank's bytes are not there, which the call reports
  }
}

void tessera_gathered_fail(tessera_gathered* all, const char* why) {
  if (all == nullptr || why == nullptr) return;
  try {
    all->why = why;
  } catch (...) {  // no memory for the words: the failure itself is known
  }
}

tessera_error tessera_ranks_new(const tessera_rank_calls* calls, tessera_ranks** ranks) {
  return capi::guarded([&] {
    capi::require(calls, "calls");
    capi::require(ranks, "ranks");
    *ranks = new tessera_ranks{capi::make_ranks(*calls)};
  });
}

tessera_error tessera_ranks_single(tessera_ranks** ranks) {
  return capi::guarded([&] {
    capi::require(ranks, "ranks");
    *ranks = new tessera_ranks{tessera::single_rank()};
  });
}

void tessera_ranks_free(tessera_ranks* ranks) { delete ranks; }
