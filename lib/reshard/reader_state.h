#pragma once
// What a TensorReader, and whatever streams tensors, takes its blocks from: files, the budget,
// geometries and workers. Thread-safe, a worker apart.
#include <tessera/reshard/tensor_reader.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/reshard/gather.h"
#include "lib/reshard/item_turn.h"

namespace tessera {

struct ReaderState {
  ReaderState(const Manifest& manifest, const Directory& directory, TransferOptions options);

  const Manifest& manifest;
  TransferOptions options;
  FilePool files;
  StagedMeter meter;
  CodedGate gate;   // of what is decoded
  CodedGate turns;  // of the same room, taken before
  std::uint64_t block_bytes;

  std::shared_ptr<const Geometry> geometry(std::uint32_t tensor);
  std::unique_ptr<Worker> take_worker();
  void give_back(std::unique_ptr<Worker> worker);
  Gather make_gather(RecordProver* prover, std::uint64_t most_bytes);

  /// [begin, end) of the collapsed ravel into out.
  void fill(const Gather& gather, const Geometry& geometry, std::uint32_t tensor,
            std::int64_t begin, std::int64_t end, std::byte* out, Worker& worker);
  /// Elements per block: whole rows of the leading dims where that fits, so that a block stays one
  /// region.
  std::int64_t block_numel(const Geometry& geometry, std::uint64_t most_bytes) const;

 private:
  std::mutex mutex_;
  SourceChooser chooser_;
  std::map<std::uint32_t, std::shared_ptr<const Geometry>> geometries_;
  std::vector<std::unique_ptr<Worker>> idle_;
};

struct TensorReader::Impl : ReaderState {
  using ReaderState::ReaderState;
};

}  // namespace tessera
