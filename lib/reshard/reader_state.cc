#include "lib/reshard/reader_state.h"

#include <algorithm>

namespace tessera {

namespace {

constexpr std::uint64_t kMostReadBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kLeastReadBytes = std::uint64_t{64} << 10;
constexpr std::size_t kKeptGeometries = 64;

bool has_coded(const Manifest& manifest) {
  for (std::size_t i = 0; i < manifest.chunks.size(); ++i)
    if (manifest.chunks.source(i).kind == Source::Kind::kCoded) return true;
  return false;
}

}  // namespace

ReaderState::ReaderState(const Manifest& m, const Directory& directory, TransferOptions o)
    : manifest(m),
      options(o),
      files(m, directory),
      gate(has_coded(m) ? coded_part(o.memory_limit_bytes) : 0),
      turns(gate.total_bytes()),
      chooser_(m) {
  // What is read, and what is handed on; no more threads than can work within the limit.
  const std::uint64_t half = (options.memory_limit_bytes - gate.total_bytes()) / 2;
  options.threads =
      std::clamp(options.threads, 1,
                 static_cast<int>(std::clamp<std::uint64_t>(half / kLeastReadBytes, 1, 1024)));
  const std::uint64_t share = half / static_cast<std::uint64_t>(options.threads);
  block_bytes = std::clamp(share, kLeastReadBytes, kMostReadBytes);
}

std::shared_ptr<const Geometry> ReaderState::geometry(std::uint32_t tensor) {
  std::lock_guard lock(mutex_);
  if (auto found = geometries_.find(tensor); found != geometries_.end()) return found->second;
  auto made = std::make_shared<const Geometry>(
      make_geometry(manifest, tensor, chooser_.choose(tensor), {}));
  if (geometries_.size() >= kKeptGeometries) geometries_.erase(geometries_.begin());
  geometries_[tensor] = made;
  return made;
}

std::unique_ptr<Worker> ReaderState::take_worker() {
  std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<Worker>(meter, gate);
  std::unique_ptr<Worker> worker = std::move(idle_.back());
  idle_.pop_back();
  return worker;
}

void ReaderState::give_back(std::unique_ptr<Worker> worker) {
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(worker));
}

Gather ReaderState::make_gather(RecordProver* prover, std::uint64_t most_bytes) {
  const std::uint64_t item =
      options.most_coded_bytes != 0 ? options.most_coded_bytes : gate.total_bytes();
  GatherOptions gather{most_bytes, most_bytes, item, options.cancel};
  gather.window_bytes = std::max<std::uint64_t>(most_bytes, std::uint64_t{1} << 20);
  return Gather(manifest, files, prover, gather);
}

void ReaderState::fill(const Gather& gather, const Geometry& geometry, std::uint32_t tensor,
                       std::int64_t begin, std::int64_t end, std::byte* out, Worker& worker) {
  std::vector<CopyTask> tasks;
  for_each_region(geometry, begin, end, [&](const Region& region) {
    auto bytes = static_cast<std::size_t>(region_numel(region) * geometry.element_bytes);
    tasks.push_back({&geometry, tensor, region, {TargetSpan{region, out, 0, false}}});
    out += bytes;
  });
  gather.run(tasks, worker, nullptr);
}

std::int64_t ReaderState::block_numel(const Geometry& geometry, std::uint64_t most_bytes) const {
  std::int64_t widest = std::max(geometry.element_bytes, geometry.stored_element_bytes);
  std::int64_t most = std::max<std::int64_t>(1, static_cast<std::int64_t>(most_bytes) / widest);
  std::int64_t inner = geometry.numel();
  if (inner == 0) return 1;
  for (std::int64_t extent : geometry.shape) {
    inner /= extent;
    if (inner <= most) return most / inner * inner;
  }
  return most;
}

}  // namespace tessera
