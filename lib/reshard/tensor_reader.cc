#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/reshard/tensor_reader.h>

#include <algorithm>
#include <optional>

#include "lib/reshard/reader_state.h"

namespace tessera {

TensorReader::TensorReader(const Manifest& manifest, const Directory& directory,
                           TransferOptions options)
    : impl_(std::make_unique<Impl>(manifest, directory, options)) {}
TensorReader::~TensorReader() = default;

struct TensorReader::Reading::State {
  State(Impl& i, std::span<const std::uint32_t> tensors, State* other)
      : impl(i), worker(impl.take_worker()), beside(other) {
    if (impl.gate.total_bytes() > 0) {
      ItemWindow window;
      for (const std::uint32_t tensor : tensors) {
        const std::shared_ptr<const Geometry> geometry = impl.geometry(tensor);
        window.add(impl.manifest, tensor, *geometry, impl.block_numel(*geometry, impl.block_bytes));
      }
      turn.emplace(impl.turns, *worker, std::move(window), impl.options.cancel);
    }
    if (beside == nullptr) return;
    worker->beside = beside->worker.get();
    beside->worker->beside = worker.get();
  }
  ~State() {
    if (beside != nullptr) worker->beside = beside->worker->beside = nullptr;
    turn.reset();
    impl.give_back(std::move(worker));
  }

  Impl& impl;
  std::unique_ptr<Worker> worker;
  std::optional<ItemTurn> turn;
  State* beside;
};

TensorReader::Reading::Reading(const TensorReader& reader, std::span<const std::uint32_t> tensors,
                               Reading* beside)
    : state_(std::make_unique<State>(*reader.impl_, tensors,
                                     beside == nullptr ? nullptr : beside->state_.get())) {}
TensorReader::Reading::~Reading() = default;

void TensorReader::Reading::read(std::uint32_t index, std::int64_t begin, std::int64_t end,
                                 MutableBytes out) {
  Impl& impl = state_->impl;
  Worker& worker = *state_->worker;
  TESSERA_CHECK(index < impl.manifest.tensors.size());
  const StoredTensor& tensor = impl.manifest.tensors[index];
  std::int64_t numel = tensor.spec.shape.numel();
  if (begin < 0 || begin > end || end > numel) {
    in_tensor(tensor.name, [&] {
      fail(Code::kOutOfRange,
           fmt::format("elements [{},{}) of a tensor of {} elements", begin, end, numel));
    });
  }
  bool whole = begin == 0 && end == numel;
  if (is_sub_byte(tensor.spec.dtype)) {
    if (!whole) {
      in_tensor(tensor.name, [&] {
        fail(Code::kUnsupported, fmt::format("part of a tensor of {} elements that do not start at "
                                             "byte borders",
                                             torch_name(tensor.spec.dtype)));
      });
    }
    end = tensor.spec.size_bytes();
  }
  std::shared_ptr<const Geometry> geometry = impl.geometry(index);
  TESSERA_CHECK(out.size() == static_cast<std::size_t>((end - begin) * geometry->element_bytes));
  RecordProver prover(impl.manifest);
  if (whole && impl.options.check_crc) {
    std::vector<std::uint64_t> chunks;
    for (const SourceChunk& chunk : geometry->source_chunks) chunks.push_back(chunk.chunk);
    prover.expect(chunks);
  }
  const Gather gather = impl.make_gather(&prover, impl.block_bytes);
  // In blocks, so that what is staged stays small beside what the caller holds.
  const std::int64_t step = impl.block_numel(*geometry, impl.block_bytes);
  std::byte* to = out.data();
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t stop = std::min(end, (at / step + 1) * step);
    if (state_->turn) state_->turn->reach(index, at);
    impl.fill(gather, *geometry, index, at, stop, to, worker);
    to += (stop - at) * geometry->element_bytes;
    at = stop;
  }
  prover.finish(impl.files);
}

void TensorReader::read(std::uint32_t index, std::int64_t begin, std::int64_t end,
                        MutableBytes out) const {
  TESSERA_CHECK(index < impl_->manifest.tensors.size());
  Reading(*this, {&index, 1}).read(index, begin, end, out);
}

std::int64_t TensorReader::coded_run(std::uint32_t index) const {
  const std::shared_ptr<const Geometry> geometry = impl_->geometry(index);
  if (!geometry->has_coded) return 0;
  const std::vector<std::int64_t> strides = dense_strides(geometry->whole());
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < geometry->sources.size(); ++i) {
    const RegionView region = geometry->sources.region(i);
    std::size_t d = 0;
    while (d + 1 < region.size() && region[d].size() == 1) ++d;
    longest = std::max(longest, region[d].size() * strides[d]);
  }
  return longest;
}

}  // namespace tessera
