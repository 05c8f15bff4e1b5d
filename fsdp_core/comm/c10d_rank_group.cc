#include "fsdp_core/comm/c10d_rank_group.h"

namespace tessera::fsdp {

namespace {

constexpr CommTag kStateTag{"save and load", CommPhase::kCheck};

class CommunicatorRankGroup final : public RankGroup {
 public:
  using Source = std::function<std::shared_ptr<Communicator>()>;
  using Another = std::function<std::unique_ptr<RankGroup>()>;

  CommunicatorRankGroup(int rank, int size, Source current, Another another,
                        std::function<bool()> usable)
      : rank_(rank),
        size_(size),
        current_(std::move(current)),
        another_(std::move(another)),
        usable_(std::move(usable)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) override {
    return current_()->all_gather_bytes(bytes, kStateTag);
  }
  void barrier() override { current_()->barrier(kStateTag); }
  std::unique_ptr<RankGroup> duplicate() override {
    return another_ ? another_() : RankGroup::duplicate();
  }
  bool usable() const override { return !usable_ || usable_(); }

 private:
  const int rank_;
  const int size_;
  const Source current_;
  const Another another_;
  const std::function<bool()> usable_;
};

}  // namespace

std::unique_ptr<RankGroup> communicator_rank_group(
    int rank, int size, std::function<std::shared_ptr<Communicator>()> current,
    std::function<std::unique_ptr<RankGroup>()> another, std::function<bool()> usable) {
  return std::make_unique<CommunicatorRankGroup>(rank, size, std::move(current), std::move(another),
                                                 std::move(usable));
}

}  // namespace tessera::fsdp
