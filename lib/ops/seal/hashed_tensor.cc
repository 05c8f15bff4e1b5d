#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/ops/hashed_tensor.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <mutex>
#include <unordered_map>

#include "lib/ops/seal/root_lines.h"
#include "lib/reshard/pair_stream.h"
#include "lib/storage/sha256_lanes.h"

namespace tessera {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += fmt::format("{}{}", i ? "," : "", shape[i]);
  return text;
}

/// A hash per tensor in flight, and what came out. Thread-safe, a tensor's own hash apart.
template <class Hash>
class OpenHashes {
 public:
  explicit OpenHashes(const std::vector<std::uint32_t>& tensors) : digests_(tensors.size()) {
    for (std::size_t i = 0; i < tensors.size(); ++i) position_.emplace(tensors[i], i);
  }
  Hash& of(std::uint32_t tensor) {
    const std::lock_guard lock(mutex_);
    return open_[tensor];  // stays in place: unordered_map nodes do not move
  }
  void finish(std::uint32_t tensor) {
    const std::string digest = hex(of(tensor).finish());
    const std::lock_guard lock(mutex_);
    digests_[position_.at(tensor)] = digest;
    open_.erase(tensor);
  }
  std::vector<std::string>& digests() { return digests_; }

 private:
  std::unordered_map<std::uint32_t, std::size_t> position_;
  std::vector<std::string> digests_;
  std::mutex mutex_;
  std::unordered_map<std::uint32_t, Hash> open_;
};

}  // namespace

/// jq's @tsv: tab, newline, carriage return and backslash are escaped.
std::string tsv(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '\t':
        out += "\\t";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\\':
        out += "\\\\";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string root_of(std::vector<std::string> lines) {
  std::ranges::sort(lines);  // std::string compares bytes as unsigned char
  Sha256 sha;
  for (const std::string& line : lines) sha.update(as_bytes(line));
  return hex(sha.finish());
}

std::vector<std::string> hash_tensors(const Manifest& manifest, const Directory& directory,
                                      const std::vector<std::uint32_t>& tensors,
                                      const TransferOptions& transfer) {
  // The largest first: with small ones last, all threads end together.
  std::vector<std::uint32_t> order = tensors;
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](std::uint32_t i) { return manifest.tensors[i].spec.size_bytes(); });
  using Block = TensorReader::Block;
  if (has_sha_instructions()) {
    OpenHashes<Sha256Lane> hashes(tensors);
    stream_pairs(
        manifest, directory, transfer, order, [&](const Block& first, const Block* second) {
          Sha256Lane& lane = hashes.of(first.tensor);
          if (second == nullptr) {
            lane.update(first.bytes);
          } else {
            Sha256Lane::update(lane, first.bytes, hashes.of(second->tensor), second->bytes);
            if (second->last) hashes.finish(second->tensor);
          }
          if (first.last) hashes.finish(first.tensor);
        });
    return hashes.digests();
  }
  OpenHashes<Sha256> hashes(tensors);
  TensorReader(manifest, directory, transfer).stream(order, [&](const Block& block) {
    hashes.of(block.tensor).update(block.bytes);
    if (block.last) hashes.finish(block.tensor);
  });
  return hashes.digests();
}

std::string HashedQuantizer::text() const {
  if (is_per_channel())
    return fmt::format("{} axis={} scales={} zero_points={}", scheme, axis, scales, zero_points);
  return fmt::format("{} scale={:016x} zero_point={}", scheme, std::bit_cast<std::uint64_t>(scale),
                     zero_point);
}

std::string content_text(const HashedTensor& tensor) {
  std::string text =
      fmt::format("{}\t{}\t{}", tsv(tensor.dtype), shape_text(tensor.shape), tensor.sha256);
  return tensor.quantizer ? fmt::format("{}\t{}", text, tsv(tensor.quantizer->text())) : text;
}

std::string content_root(const std::vector<HashedTensor>& tensors) {
  std::vector<std::string> lines;
  for (const HashedTensor& t : tensors)
    lines.push_back(fmt::format("{}\t{}\n", tsv(t.name), content_text(t)));
  return root_of(std::move(lines));
}

std::string content_root_v1(std::vector<HashedTensor> tensors) {
  for (HashedTensor& tensor : tensors) tensor.quantizer.reset();
  return content_root(tensors);
}

}  // namespace tessera
