#include "fsdp_core/comm/c10d_rank_group.h"

namespace tessera::fsdp {

namespace {

constexpr CommTag kTag{"save and load", CommPhase::kCheck};

class CommunicatorRankGroup final : public RankGroup {
 public:
  CommunicatorRankGroup(int rank, int size, std::function<std::shared_ptr<Communicator>()> current)
      : rank_(rank), size_(size), current_(std::move(current)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) override {
    return current_()->all_gather_bytes(bytes, kTag);
  }
  void barrier() override { current_()->barrier(kTag); }

 private:
  const int rank_;
  const int size_;
  const std::function<std::shared_ptr<Communicator>()> current_;
};

}  // namespace

std::unique_ptr<RankGroup> communicator_rank_group(
    int rank, int size, std::function<std::shared_ptr<Communicator>()> current) {
  return std::make_unique<CommunicatorRankGroup>(rank, size, std::move(current));
}

}  // namespace tessera::fsdp
