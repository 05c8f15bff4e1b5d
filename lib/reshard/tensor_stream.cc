// Whole tensors, block by block, one or two at a time.
#include <tessera/base/parallel.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "lib/reshard/pair_stream.h"
#include "lib/reshard/reader_state.h"

namespace tessera {

namespace {

// Of what lies in the page cache: still in the CPU's cache when it is looked at.
constexpr std::uint64_t kCachedBlockBytes = std::uint64_t{256} << 10;

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
    if (!geometry_.has_coded) return;
    ItemWindow window;
    window.add(state.manifest, tensor_, geometry_, step_);
    turn_.emplace(all_.state_.turns, worker_, std::move(window), state.options.cancel);
  }
  bool is_open() const { return is_open_; }
  /// Drops what is decoded, also where an error ends the work: others may wait for the room.
  void close() { turn_.reset(); }

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
      if (turn_) turn_->reach(tensor_, begin);
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
  std::optional<ItemTurn> turn_;
};

class ClosedAtEnd {
 public:
  explicit ClosedAtEnd(Cursor& cursor) : cursor_(cursor) {}
  ~ClosedAtEnd() { cursor_.close(); }
  ClosedAtEnd(const ClosedAtEnd&) = delete;
  ClosedAtEnd& operator=(const ClosedAtEnd&) = delete;

 private:
  Cursor& cursor_;
};

}  // namespace

void TensorReader::stream(std::span<const std::uint32_t> tensors,
                          const std::function<void(const Block&)>& sink) const {
  Streaming all(*impl_, tensors, 1);
  const int threads = std::max(1, impl_->options.threads);
  std::vector<std::unique_ptr<Cursor>> cursors(static_cast<std::size_t>(threads));
  parallel_for(tensors.size(), threads, [&](std::size_t i, int number) {
    std::unique_ptr<Cursor>& cursor = cursors[static_cast<std::size_t>(number)];
    if (!cursor) cursor = std::make_unique<Cursor>(all, number);
    const ClosedAtEnd closed(*cursor);
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
