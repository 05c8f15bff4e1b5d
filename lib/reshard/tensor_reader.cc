#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/reshard/tensor_reader.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "lib/reshard/gather.h"

namespace tessera {

namespace {

constexpr std::uint64_t kMostReadBytes = std::uint64_t{8} << 20;
// Of what lies in the page cache: still in the CPU's cache when it is looked at.
constexpr std::uint64_t kCachedBlockBytes = std::uint64_t{256} << 10;
constexpr std::uint64_t kLeastReadBytes = std::uint64_t{64} << 10;
constexpr std::size_t kKeptGeometries = 64;

/// A flat range of the collapsed tensor, cut into prefix-fixed regions in order.
template <class Visit>
void for_each_region(const Geometry& geometry, std::int64_t begin, std::int64_t end,
                     Visit&& visit) {
  if (begin == end) return;
  if (geometry.shape.size() == 1) {
    visit(Region{{begin, end}});
    return;
  }
  Chunk range{Box::whole(Shape(geometry.shape)), begin, end};
  for (const ChunkPiece& piece : decompose(range)) {
    Region region;
    for (int d = 0; d < piece.box.rank(); ++d)
      region.push_back({piece.box.begin(d), piece.box.end(d)});
    visit(region);
  }
}

}  // namespace

struct TensorReader::Impl {
  Impl(const Manifest& m, const Directory& d, TransferOptions o)
      : manifest(m),
        options(o),
        files(m, d),
        gate(has_coded(m) ? coded_part(o.memory_limit_bytes) : 0),
        chooser(m) {
    // What is read, and what is handed on; no more threads than can work within the limit.
    const std::uint64_t half = (options.memory_limit_bytes - gate.total_bytes()) / 2;
    options.threads =
        std::clamp(options.threads, 1,
                   static_cast<int>(std::clamp<std::uint64_t>(half / kLeastReadBytes, 1, 1024)));
    const std::uint64_t share = half / static_cast<std::uint64_t>(options.threads);
    block_bytes = std::clamp(share, kLeastReadBytes, kMostReadBytes);
  }

  const Manifest& manifest;
  TransferOptions options;
  FilePool files;
  StagedMeter meter;
  CodedGate gate;
  std::uint64_t block_bytes;

  static bool has_coded(const Manifest& manifest) {
    for (std::size_t i = 0; i < manifest.chunks.size(); ++i)
      if (manifest.chunks.source(i).kind == Source::Kind::kCoded) return true;
    return false;
  }

  std::mutex mutex;
  SourceChooser chooser;
  std::map<std::uint32_t, std::shared_ptr<const Geometry>> geometries;
  std::vector<std::unique_ptr<Worker>> idle;

  std::shared_ptr<const Geometry> geometry(std::uint32_t tensor) {
    std::lock_guard lock(mutex);
    if (auto found = geometries.find(tensor); found != geometries.end()) return found->second;
    auto made = std::make_shared<const Geometry>(
        make_geometry(manifest, tensor, chooser.choose(tensor), {}));
    if (geometries.size() >= kKeptGeometries) geometries.erase(geometries.begin());
    geometries[tensor] = made;
    return made;
  }

  std::unique_ptr<Worker> take_worker() {
    std::lock_guard lock(mutex);
    if (idle.empty()) return std::make_unique<Worker>(meter, gate);
    std::unique_ptr<Worker> worker = std::move(idle.back());
    idle.pop_back();
    return worker;
  }
  void give_back(std::unique_ptr<Worker> worker) {
    std::lock_guard lock(mutex);
    idle.push_back(std::move(worker));
  }

  Gather make_gather(RecordProver* prover) {
    auto threads = static_cast<std::uint64_t>(std::max(1, options.threads));
    return Gather(manifest, files, prover,
                  {block_bytes, block_bytes, gate.total_bytes() / threads, options.cancel});
  }

  /// [begin, end) of the collapsed ravel into out.
  void fill(const Gather& gather, const Geometry& geometry, std::uint32_t tensor,
            std::int64_t begin, std::int64_t end, std::byte* out, Worker& worker) {
    std::vector<CopyTask> tasks;
    for_each_region(geometry, begin, end, [&](const Region& region) {
      auto bytes = static_cast<std::size_t>(region_numel(region) * geometry.element_bytes);
      tasks.push_back({&geometry, tensor, region, {TargetSpan{region, out, 0, false}}});
      out += bytes;
    });
    gather.run(tasks, worker, nullptr);
  }

  /// Elements per block: whole rows of the leading dims where that fits, so that a block stays one
  /// region.
  std::int64_t block_numel(const Geometry& geometry, std::uint64_t most_bytes) const {
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
};

TensorReader::TensorReader(const Manifest& manifest, const Directory& directory,
                           TransferOptions options)
    : impl_(std::make_unique<Impl>(manifest, directory, options)) {}
TensorReader::~TensorReader() = default;

void TensorReader::read(std::uint32_t index, std::int64_t begin, std::int64_t end,
                        MutableBytes out) const {
  TESSERA_CHECK(index < impl_->manifest.tensors.size());
  const StoredTensor& tensor = impl_->manifest.tensors[index];
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
  std::shared_ptr<const Geometry> geometry = impl_->geometry(index);
  TESSERA_CHECK(out.size() == static_cast<std::size_t>((end - begin) * geometry->element_bytes));
  RecordProver prover(impl_->manifest);
  if (whole && impl_->options.check_crc) {
    std::vector<std::uint64_t> chunks;
    for (const SourceChunk& chunk : geometry->source_chunks) chunks.push_back(chunk.chunk);
    prover.expect(std::move(chunks));
  }
  std::unique_ptr<Worker> worker = impl_->take_worker();
  Gather gather = impl_->make_gather(&prover);
  {
    const DecodedAtEnd dropped(*worker);
    // In blocks, so that what is staged stays small beside what the caller holds.
    std::int64_t step = impl_->block_numel(*geometry, impl_->block_bytes);
    std::byte* to = out.data();
    for (std::int64_t at = begin; at < end;) {
      std::int64_t stop = std::min(end, (at / step + 1) * step);
      impl_->fill(gather, *geometry, index, at, stop, to, *worker);
      to += (stop - at) * geometry->element_bytes;
      at = stop;
    }
  }
  impl_->give_back(std::move(worker));
  prover.finish(impl_->files);
}

void TensorReader::stream(std::span<const std::uint32_t> tensors,
                          const std::function<void(const Block&)>& sink) const {
  Impl& impl = *impl_;
  RecordProver prover(impl.manifest);
  std::vector<std::vector<std::uint32_t>> chosen(tensors.size());
  std::vector<std::uint64_t> expected;
  SourceChooser chooser(impl.manifest);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const StoredTensor& tensor = impl.manifest.tensors[tensors[i]];
    chosen[i] = chooser.choose(tensors[i]);
    for (std::uint32_t c : chosen[i]) expected.push_back(tensor.first_chunk + c);
    total += static_cast<std::uint64_t>(tensor.spec.size_bytes());
  }
  if (impl.options.check_crc) prover.expect(std::move(expected));
  if (impl.options.progress != nullptr) impl.options.progress->total_bytes += total;

  int threads = std::max(1, impl.options.threads);
  std::vector<std::unique_ptr<Worker>> workers(static_cast<std::size_t>(threads));
  Gather gather = impl.make_gather(&prover);
  parallel_for(tensors.size(), threads, [&](std::size_t i, int number) {
    if (impl.options.cancel != nullptr) impl.options.cancel->check();
    std::unique_ptr<Worker>& worker = workers[static_cast<std::size_t>(number)];
    if (!worker) worker = std::make_unique<Worker>(impl.meter, impl.gate);
    const DecodedAtEnd dropped(*worker);
    Geometry geometry = make_geometry(impl.manifest, tensors[i], chosen[i], {});
    std::int64_t numel = geometry.numel();
    Block block{tensors[i], 0, 0, {}, numel == 0, number};
    if (numel == 0) {
      sink(block);
      return;
    }
    const bool is_cached = gather.lies_in_cache(geometry);
    std::int64_t step = impl.block_numel(
        geometry, is_cached ? std::min(kCachedBlockBytes, impl.block_bytes) : impl.block_bytes);
    auto es = static_cast<std::uint64_t>(geometry.element_bytes);
    for (std::int64_t at = 0; at < numel; at += step) {
      std::int64_t stop = std::min(numel, at + step);
      std::uint64_t bytes = static_cast<std::uint64_t>(stop - at) * es;
      std::byte* out = worker->write.need(bytes);
      impl.fill(gather, geometry, tensors[i], at, stop, out, *worker);
      block.first_element = at;
      block.numel = stop - at;
      block.bytes = {out, static_cast<std::size_t>(bytes)};
      block.last = stop == numel;
      sink(block);
      if (impl.options.progress != nullptr) impl.options.progress->done_bytes += bytes;
    }
  });
  prover.finish(impl.files);
}

}  // namespace tessera
