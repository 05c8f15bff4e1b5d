// Sources that are no bytes of a file as they are: coded items, decoded within the memory limit,
// bytes of the manifest, fill values, live memory.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/codec.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "lib/reshard/gather_need.h"

namespace tessera {

namespace {

/// Bytes taken from the gate, and from the meter's point of view staged, until they are kept or
/// given back.
class Reservation {
 public:
  Reservation(Worker& worker, std::uint64_t bytes, const GatherOptions& options)
      : worker_(worker), bytes_(bytes) {
    if (worker.decoded_bytes + bytes > worker.most_decoded_bytes) worker.drop_decoded();
    if (!worker.gate->try_take(bytes)) {
      worker.drop_decoded();
      if (worker.beside != nullptr) worker.beside->drop_decoded();
      worker.gate->take(bytes, options.cancel);
    }
    worker.meter->add(static_cast<std::int64_t>(bytes));
  }
  ~Reservation() { give(bytes_); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  /// `bytes` of it stay with the worker, which gives them back.
  void keep(std::uint64_t bytes) {
    TESSERA_CHECK(bytes <= bytes_);
    give(bytes_ - bytes);
    worker_.decoded_bytes += bytes;
    bytes_ = 0;
  }

 private:
  void give(std::uint64_t bytes) {
    worker_.gate->give(bytes);
    worker_.meter->add(-static_cast<std::int64_t>(bytes));
  }
  Worker& worker_;
  std::uint64_t bytes_;
};

}  // namespace

const Bytes& Gather::decoded(const StoredTensor& tensor, const Need& need, Worker& worker) const {
  const Source& source = *need.source;
  const std::pair key(source.file, source.offset);  // several chunks may be views of one item
  if (auto found = worker.decoded.find(key); found != worker.decoded.end()) {
    if (prover_ != nullptr && prover_->wants(need.chunk)) {
      in_file(files_.path(source.file), [&] { prove_apart(need, worker); });
    }
    return found->second;
  }
  return in_file(files_.path(source.file), [&]() -> const Bytes& {
    const CodedSize size = coded_size(manifest_, tensor, need.chunk);
    const std::uint64_t total = std::min(worker.gate->total_bytes(), options_.item_bytes);
    if (size.at_once() > total) {
      fail(Code::kResourceExhausted,
           fmt::format("decoding a compressed item takes {} bytes, there are {} for one",
                       size.at_once(), total),
           "raise --mem-limit");
    }
    // An item may decode to more than its chunks need (a chunk cut off at the tensor's end): then
    // it is decoded once more, alone.
    for (bool alone = false;; alone = true) {
      const std::uint64_t taken = alone ? total : size.at_once();
      const std::uint64_t rest = total - size.stored;
      const std::uint64_t most =
          !alone ? size.largest
                 : std::max(size.largest, size.several ? std::min(rest, total / 2) : rest);
      Reservation mine(worker, taken, options_);
      bool is_read = false;
      try {
        Bytes out = decode_item(need, most, worker, is_read);
        mine.keep(out.size());
        return worker.decoded[key] = std::move(out);
      } catch (const Error& error) {
        if (alone || !is_read || error.code() != Code::kCorrupt) throw;
      }
    }
  });
}

/// What is read and decoded here is in the caller's reservation.
Bytes Gather::decode_item(const Need& need, std::uint64_t most_bytes, Worker& worker,
                          bool& is_read) const {
  const Source& source = *need.source;
  StagedMeter uncounted;
  std::optional<MeteredBuffer> raw(std::in_place, uncounted);
  const std::byte* data = nullptr;
  read(source.file, source.offset, source.offset + source.length, worker, *raw, &data);
  ByteView in{data, static_cast<std::size_t>(source.length)};
  if (prover_ != nullptr && prover_->wants(need.chunk) && prover_->claim(need.chunk)) {
    prover_->add(need.chunk, source.offset, source.length, crc32(0, in));
  }
  is_read = true;
  const std::uint32_t chain = source.view != 0 ? manifest_.views[source.side].codecs : source.side;
  Bytes out;
  for (const std::string& codec : manifest_.codecs[chain]) {
    out = decode(codec, in, most_bytes);
    raw.reset();
    in = out;
  }
  return out;
}

void Gather::from_memory(std::span<const CopyTask> tasks, const Need& need, Worker& worker,
                         std::vector<Fragment>* fragments) const {
  const CopyTask& task = tasks[need.task];
  auto es = static_cast<std::uint64_t>(task.geometry->stored_element_bytes);
  const Source& source = *need.source;
  switch (source.kind) {
    case Source::Kind::kPending:
      fail(Code::kInternal, "its data was not located before it was read");
    case Source::Kind::kMemory:
      place(task, need, reinterpret_cast<const std::byte*>(need.offset), false, worker, fragments);
      return;
    case Source::Kind::kComputed:
      return from_computed(task, need, worker, fragments);
    case Source::Kind::kFill: {
      const Bytes& element = manifest_.inline_bytes[source.side];
      TESSERA_CHECK(element.size() == es);
      std::byte* filled = worker.private_copy.need(need.length);
      for (std::uint64_t at = 0; at < need.length; at += es) {
        std::memcpy(filled + at, element.data(), es);
      }
      place(task, need, filled, false, worker, fragments);
      return;
    }
    default:
      break;
  }
  const Bytes& bytes = source.kind == Source::Kind::kInline
                           ? manifest_.inline_bytes[source.side]
                           : decoded(manifest_.tensors[task.tensor], need, worker);
  std::uint64_t begin = static_cast<std::uint64_t>(need.first_element) * es;
  if (begin + need.length > bytes.size()) {
    fail(Code::kCorrupt,
         fmt::format("its stored bytes decode to {} bytes, which is too few", bytes.size()));
  }
  place(task, need, bytes.data() + begin, false, worker, fragments);
}

}  // namespace tessera
