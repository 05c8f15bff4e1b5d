#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/reshard/tensor_reader.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "lib/reshard/gather.h"
#include "lib/reshard/pair_stream.h"

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

/// Where a reader, or a stream of pairs, takes its blocks from.
struct ReaderState {
  ReaderState(const Manifest& m, const Directory& d, TransferOptions o)
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

  Gather make_gather(RecordProver* prover, std::uint64_t most_bytes) {
    auto threads = static_cast<std::uint64_t>(std::max(1, options.threads));
    return Gather(manifest, files, prover,
                  {most_bytes, most_bytes, gate.total_bytes() / threads, options.cancel});
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

namespace {

/// What all threads of one stream share. `at_once`: tensors that one thread looks at.
class Streaming {
 public:
  Streaming(ReaderState& state, std::span<const std::uint32_t> tensors, std::uint64_t at_once)
      : state_(state),
        tensors_(tensors),
        block_bytes_(state.block_bytes / at_once),
        chosen_(tensors.size()),
        prover_(state.manifest),
        gather_(state.make_gather(&prover_, block_bytes_)) {
    SourceChooser chooser(state.manifest);
    std::vector<std::uint64_t> expected;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const StoredTensor& tensor = state.manifest.tensors[tensors[i]];
      chosen_[i] = chooser.choose(tensors[i]);
      for (std::uint32_t c : chosen_[i]) expected.push_back(tensor.first_chunk + c);
      total += static_cast<std::uint64_t>(tensor.spec.size_bytes());
    }
    if (state.options.check_crc) prover_.expect(expected);
    if (state.options.progress != nullptr) state.options.progress->total_bytes += total;
  }

  void finish() { prover_.finish(state_.files); }

 private:
  friend class Cursor;
  ReaderState& state_;
  std::span<const std::uint32_t> tensors_;
  std::uint64_t block_bytes_;
  std::vector<std::vector<std::uint32_t>> chosen_;
  RecordProver prover_;
  Gather gather_;
};

/// One tensor after the other of a stream, block by block, with buffers of its own.
class Cursor {
 public:
  Cursor(Streaming& all, int worker)
      : all_(all), worker_number_(worker), worker_(all.state_.meter, all.state_.gate) {}

  void open(std::size_t i) {
    const ReaderState& state = all_.state_;
    if (state.options.cancel != nullptr) state.options.cancel->check();
    tensor_ = all_.tensors_[i];
    geometry_ = make_geometry(state.manifest, tensor_, all_.chosen_[i], {});
    at_ = 0;
    const bool is_cached = all_.gather_.lies_in_cache(geometry_);
    step_ = state.block_numel(
        geometry_, is_cached ? std::min(kCachedBlockBytes, all_.block_bytes_) : all_.block_bytes_);
    is_open_ = true;
  }
  bool is_open() const { return is_open_; }
  Worker& worker() { return worker_; }

  /// Valid until the next call. Closes itself after the last one.
  TensorReader::Block next() {
    ReaderState& state = all_.state_;
    const std::int64_t numel = geometry_.numel(), begin = at_;
    at_ = std::min(numel, begin + step_);
    is_open_ = at_ < numel;
    TensorReader::Block block{tensor_, begin, at_ - begin, {}, !is_open_, worker_number_};
    if (numel > 0) {
      const auto bytes = static_cast<std::uint64_t>(block.numel * geometry_.element_bytes);
      std::byte* out = worker_.write.need(bytes);
      state.fill(all_.gather_, geometry_, tensor_, begin, at_, out, worker_);
      block.bytes = {out, static_cast<std::size_t>(bytes)};
    }
    return block;
  }
  void count(const TensorReader::Block& block) const {
    if (all_.state_.options.progress != nullptr)
      all_.state_.options.progress->done_bytes += block.bytes.size();
  }

 private:
  Streaming& all_;
  int worker_number_;
  Worker worker_;
  std::uint32_t tensor_ = 0;
  Geometry geometry_;
  std::int64_t at_ = 0;
  std::int64_t step_ = 1;
  bool is_open_ = false;
};

}  // namespace

struct TensorReader::Impl : ReaderState {
  using ReaderState::ReaderState;
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
    prover.expect(chunks);
  }
  std::unique_ptr<Worker> worker = impl_->take_worker();
  Gather gather = impl_->make_gather(&prover, impl_->block_bytes);
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
  Streaming all(*impl_, tensors, 1);
  const int threads = std::max(1, impl_->options.threads);
  std::vector<std::unique_ptr<Cursor>> cursors(static_cast<std::size_t>(threads));
  parallel_for(tensors.size(), threads, [&](std::size_t i, int number) {
    std::unique_ptr<Cursor>& cursor = cursors[static_cast<std::size_t>(number)];
    if (!cursor) cursor = std::make_unique<Cursor>(all, number);
    const DecodedAtEnd dropped(cursor->worker());
    cursor->open(i);
    while (cursor->is_open()) {
      const Block block = cursor->next();
      sink(block);
      cursor->count(block);
    }
  });
  all.finish();
}

void stream_pairs(const Manifest& manifest, const Directory& directory,
                  const TransferOptions& options, std::span<const std::uint32_t> tensors,
                  const std::function<void(const TensorReader::Block& first,
                                           const TensorReader::Block* second)>& sink) {
  using Block = TensorReader::Block;
  ReaderState state(manifest, directory, options);
  // Who holds one decoded item and waits for room for another might wait for itself.
  if (state.gate.total_bytes() > 0) {
    return TensorReader(manifest, directory, options).stream(tensors, [&](const Block& block) {
      sink(block, nullptr);
    });
  }
  Streaming all(state, tensors, 2);
  std::atomic<std::size_t> opened{0};
  std::atomic<bool> stop{false};
  const auto threads = static_cast<std::size_t>(std::max(1, state.options.threads));
  parallel_for(std::min(threads, tensors.size()), state.options.threads,
               [&](std::size_t, int number) {
                 Cursor first(all, number), second(all, number);
                 const auto has_more = [&](Cursor& cursor) {
                   if (cursor.is_open()) return true;
                   const std::size_t i = stop ? tensors.size() : opened++;
                   if (i < tensors.size()) cursor.open(i);
                   return i < tensors.size();
                 };
                 try {
                   for (;;) {
                     const bool one = has_more(first), two = has_more(second);
                     if (!one && !two) break;
                     Cursor& leading = one ? first : second;
                     const Block block = leading.next();
                     if (!one || !two) {
                       sink(block, nullptr);
                     } else {
                       const Block other = second.next();
                       sink(block, &other);
                       second.count(other);
                     }
                     leading.count(block);
                   }
                 } catch (...) {
                   stop = true;
                   throw;
                 }
               });
  all.finish();
}

}  // namespace tessera
