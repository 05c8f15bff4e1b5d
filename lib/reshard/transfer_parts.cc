#include "lib/reshard/transfer_parts.h"

#include "lib/reshard/geometry.h"

namespace tessera {
namespace {

bool is_coded(const Manifest& source, const StoredTensor& tensor, std::uint32_t chunk) {
  const Source& from = source.source(tensor, chunk);
  if (from.kind == Source::Kind::kCoded) return true;
  if (from.kind != Source::Kind::kComputed) return false;
  for (const std::uint32_t part : source.computed[computed_index(source, from)].parts) {
    const StoredTensor& read = source.tensors[part];
    for (std::uint32_t c = 0; c < read.chunk_count; ++c)
      if (is_coded(source, read, c)) return true;
  }
  return false;
}

}  // namespace

bool reads_coded(const Manifest& source, const Plan& plan) {
  for (std::size_t i = 0; i < plan.tensor_count(); ++i) {
    const StoredTensor& tensor = source.tensors[plan.tensor(i)];
    for (std::uint32_t c : plan.sources(i))
      if (is_coded(source, tensor, c)) return true;
  }
  return false;
}

GatherOptions gather_options(const Budget& budget, const CodedGate& gate,
                             const CancelToken* cancel) {
  GatherOptions options;
  options.block_bytes = budget.block_bytes;
  options.span_bytes = budget.span_bytes;
  options.item_bytes = gate.total_bytes();
  options.window_bytes = std::max<std::uint64_t>(budget.share_bytes / 8, std::uint64_t{1} << 20);
  options.cancel = cancel;
  return options;
}

std::unique_ptr<Worker> make_worker(StagedMeter& meter, CodedGate& gate, int threads) {
  auto worker = std::make_unique<Worker>(meter, gate);
  worker->most_decoded_bytes = gate.total_bytes() / static_cast<std::uint64_t>(threads);
  return worker;
}

void WorkerTotals::add(const Worker& worker) {
  bytes_read += worker.bytes_read;
  for (const auto& [tensor, counts] : worker.casts) {
    CastCounts& all = casts[tensor];
    all.overflow_to_inf += counts.overflow_to_inf;
    all.underflow_to_zero += counts.underflow_to_zero;
  }
}

}  // namespace tessera
