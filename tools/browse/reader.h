#pragma once
// What reads for the browser: answers one want after the other. One thread uses it.
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/optim_state.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tools/browse/list.h"
#include "tools/browse/want.h"

namespace tessera::tools {

class BrowseReader {
 public:
  /// One checkpoint or two, and the items by which they are asked for. `limits`: memory and threads.
  BrowseReader(std::vector<OpenedCheckpoint> sides, std::vector<BrowseItem> items,
               TransferOptions limits);

  /// What fails is said in the answer.
  Answer answer(const Want& want, const CancelToken* cancel, Progress* progress);

 private:
  /// A checkpoint, and where a tensor stands in its optimizers, found when first asked for.
  struct Side {
    OpenedCheckpoint checkpoint;
    bool looked = false;
    std::vector<OptimState> optimizers;
    struct Place {
      std::size_t optimizer, parameter;
    };
    std::unordered_map<std::uint32_t, Place> places;  // by tensor
  };

  void fill(Answer& answer, const TransferOptions& transfer);
  ShowReport show_of(Side& side, const Want& want, const TransferOptions& transfer);
  StatReport stat_of(Side& side, std::vector<std::uint32_t> tensors,
                     const TransferOptions& transfer);
  std::optional<OptimizerOfTensor> optimizer_of(Side& side, std::uint32_t tensor, bool with_numbers,
                                                const TransferOptions& transfer);
  static void look_for_optimizers(Side& side);

  std::vector<Side> sides_;
  std::vector<BrowseItem> items_;
  TransferOptions limits_;
};

}  // namespace tessera::tools
