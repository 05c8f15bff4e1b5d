#include "lib/live/contents_digest.h"

#include <tessera/base/error.h>
#include <tessera/encoding/pickle_writer.h>
#include <tessera/ops/seal.h>

#include <algorithm>

#include "lib/state/live/wire.h"

namespace tessera {

namespace {

constexpr std::size_t kDigestBlockBytes = std::size_t{64} << 10;

/// Digests what is written to it, which can be large.
class WireDigest : public WireForm<WireDigest> {
 public:
  WireDigest& put(const void* data, std::size_t bytes) {
    block_.put(data, bytes);
    written_ += bytes;
    if (written_ >= kDigestBlockBytes) flush();
    return *this;
  }
  WireDigest& put_number(std::uint64_t n) {
    std::byte raw[sizeof n];
    store_le(raw, n);
    return put(raw, sizeof n);
  }
  Sha256Digest finish() {
    flush();
    return digest_.finish();
  }

 private:
  void flush() {
    digest_.update(block_.finish());
    block_ = {};
    written_ = 0;
  }

  WireWriter block_;
  std::size_t written_ = 0;
  Sha256 digest_;
};

void add_side_tables(const Manifest& manifest, WireDigest& out) {
  out.number(manifest.strides.size());
  for (const auto& strides : manifest.strides) out.integers(strides);
  out.number(manifest.inline_bytes.size());
  for (const Bytes& bytes : manifest.inline_bytes) out.bytes(bytes);
  out.number(manifest.codecs.size());
  for (const auto& chain : manifest.codecs) {
    out.number(chain.size());
    for (const std::string& codec : chain) out.text(codec);
  }
  out.number(manifest.views.size());
  for (const CodedView& view : manifest.views)
    out.number(view.codecs).integer(view.first_element).integers(view.strides);
  out.number(manifest.records.size());
  for (const Record& record : manifest.records)
    out.number(record.file).number(record.offset).number(record.length).number(record.crc32);
}

void add_chunk(const ChunkView& chunk, const Source& source, WireDigest& out) {
  out.integers(chunk.origin).integers(chunk.extents);
  out.integer(chunk.flat_begin).integer(chunk.flat_end);
  out.number(static_cast<std::uint64_t>(source.kind)).number(source.flags).number(source.view);
  out.number(source.file).number(source.offset).number(source.length);
  out.number(source.side).number(source.record);
}

void add_tensors(const Manifest& manifest, WireDigest& out) {
  out.number(manifest.tensors.size());
  for (const StoredTensor& tensor : manifest.tensors) {
    out.text(tensor.name).number(static_cast<std::uint64_t>(tensor.spec.dtype));
    out.number(static_cast<std::uint64_t>(tensor.stored_dtype()));
    out.integers(tensor.spec.shape.extents());
    const ChunkSlice chunks = manifest.chunks_of(tensor);
    out.number(chunks.size());
    for (std::size_t c = 0; c < chunks.size(); ++c)
      add_chunk(chunks[c], manifest.source(tensor, c), out);
  }
}

void add_value(const Value& value, WireDigest& out) {
  if (value.is_tensor()) {
    out.number(1).number(value.tensor_index());
    return;
  }
  out.number(0);
  try {
    PickleEmitter emitter;
    write_value(emitter, value,
                [](PickleEmitter& to, std::uint32_t index) { to.integer(std::int64_t{index}); });
    out.bytes(emitter.finish());
  } catch (const Error&) {  // an object that was read in part
    out.text("an object");
  }
}

void add_values(const Manifest& manifest, WireDigest& out) {
  out.number(manifest.state.entries.size());
  for (const StateEntry& entry : manifest.state.entries) {
    out.text(entry.name).path(entry.path);
    add_value(entry.value, out);
  }
}

}  // namespace

Sha256Digest contents_digest(const OpenedCheckpoint& opened) {
  const Manifest& manifest = opened.manifest;
  WireDigest out;
  out.text(manifest.format).number(opened.seal ? 1 : 0);
  if (opened.seal) {  // with sums of the metadata, too
    out.bytes(encode_seal(*opened.seal));
    add_values(manifest, out);
    return out.finish();
  }
  out.number(manifest.files.size());
  for (const StoredFile& file : manifest.files) out.text(file.path).number(file.size_bytes);
  add_tensors(manifest, out);
  add_side_tables(manifest, out);
  add_values(manifest, out);
  return out.finish();
}

}  // namespace tessera
