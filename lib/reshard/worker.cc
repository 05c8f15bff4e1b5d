#include "lib/reshard/worker.h"

#include <tessera/storage/file_system.h>

namespace tessera {

void StagedMeter::add(std::int64_t bytes) {
  std::int64_t now = now_.fetch_add(bytes) + bytes;
  std::int64_t peak = peak_.load();
  while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
  }
}

std::byte* MeteredBuffer::need(std::uint64_t bytes) {
  if (bytes > buffer_.size()) {
    std::size_t before = buffer_.size();
    buffer_.reserve(bytes);
    meter_->add(static_cast<std::int64_t>(buffer_.size() - before));
  }
  return buffer_.data();
}

void MeteredBuffer::fill(std::uint64_t bytes) {
  std::byte* page = need(bytes);
  for (std::uint64_t at = 0; at < bytes; at += kIoAlignment) page[at] = std::byte{0};
}

Worker& Worker::for_parts() {
  if (!parts_) parts_ = std::make_unique<Worker>(*meter, *gate);
  parts_->most_decoded_bytes = most_decoded_bytes;
  return *parts_;
}

void Worker::drop_decoded() {
  if (parts_) parts_->drop_decoded();
  decoded.clear();
  meter->add(-static_cast<std::int64_t>(decoded_bytes));
  gate->give(decoded_bytes);
  decoded_bytes = 0;
}

void Worker::drop_decoded(Decoded::iterator item) {
  const std::uint64_t bytes = item->second.size();
  decoded.erase(item);
  meter->add(-static_cast<std::int64_t>(bytes));
  gate->give(bytes);
  decoded_bytes -= bytes;
}

}  // namespace tessera
