#include "tests/support/reshard_scene.h"

#include <tessera/storage/checksum.h>

#include <algorithm>
#include <cstring>

namespace tessera::test {

bool same(ByteView a, ByteView b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

bool same(const std::vector<Bytes>& a, const std::vector<Bytes>& b) {
  return std::ranges::equal(a, b, [](const Bytes& x, const Bytes& y) { return same(x, y); });
}

std::vector<std::int64_t> elements_of(const Shape& shape, const Chunk& chunk) {
  struct Dim {
    std::int64_t origin, extent, whole;
  };
  std::vector<Dim> dims;  // the innermost first
  for (int d = shape.rank() - 1; d >= 0; --d)
    dims.push_back({chunk.box.origin[static_cast<std::size_t>(d)], chunk.box.shape[d], shape[d]});
  std::vector<std::int64_t> elements(static_cast<std::size_t>(chunk.flat_end - chunk.flat_begin));
  std::int64_t i = chunk.flat_begin;
  for (std::int64_t& element : elements) {
    std::int64_t rest = i++, global = 0, step = 1;
    for (const Dim& dim : dims) {
      global += (dim.origin + rest % dim.extent) * step;
      rest /= dim.extent;
      step *= dim.whole;
    }
    element = global;
  }
  return elements;
}

Bytes chunk_bytes(std::uint32_t tensor, const TensorSpec& spec, const Chunk& chunk) {
  const std::vector<std::int64_t> elements = elements_of(spec.shape, chunk);
  const auto width = static_cast<int>(element_bytes(spec.dtype));
  Bytes bytes(elements.size() * static_cast<std::size_t>(width));
  std::byte* at = bytes.data();
  for (const std::int64_t element : elements)
    for (int b = 0; b < width; ++b) *at++ = content_byte(tensor, element, b);
  return bytes;
}

Bytes tensor_bytes(std::uint32_t tensor, const TensorSpec& spec) {
  return chunk_bytes(tensor, spec, Chunk::whole_of(Box::whole(spec.shape)));
}

namespace {

std::vector<std::int64_t> cuts(std::mt19937_64& random, std::int64_t extent, std::int64_t most) {
  std::vector<std::int64_t> at{0, extent};
  std::int64_t n = std::uniform_int_distribution<std::int64_t>(0, most - 1)(random);
  for (std::int64_t i = 0; i < n; ++i) {
    at.push_back(std::uniform_int_distribution<std::int64_t>(0, extent)(random));
  }
  std::sort(at.begin(), at.end());
  return at;  // equal neighbours make empty chunks
}

void grid(std::mt19937_64& random, const Shape& shape, int dims, int d, Box& box,
          std::vector<Chunk>& out) {
  if (d == shape.rank()) {
    out.push_back(Chunk::whole_of(box));
    return;
  }
  std::vector<std::int64_t> at{0, shape[d]};
  if (d < dims) at = cuts(random, shape[d], 4);
  for (std::size_t i = 0; i + 1 < at.size(); ++i) {
    box.origin[static_cast<std::size_t>(d)] = at[i];
    box.shape[d] = at[i + 1] - at[i];
    std::mt19937_64 same = random;  // a grid: every row has the same columns
    grid(same, shape, dims, d + 1, box, out);
  }
}

}  // namespace

std::vector<Chunk> random_tiling(std::mt19937_64& random, const Shape& shape) {
  std::vector<Chunk> out;
  int kind = std::uniform_int_distribution<int>(0, 3)(random);
  Box box = Box::whole(shape);
  if (kind == 0 || shape.rank() == 0) {
    out.push_back(Chunk::whole_of(box));
  } else if (kind == 1) {
    std::vector<std::int64_t> at = cuts(random, shape.numel(), 5);
    for (std::size_t i = 0; i + 1 < at.size(); ++i) out.push_back({box, at[i], at[i + 1]});
  } else if (kind == 2) {
    grid(random, shape, 1, 0, box, out);
  } else {
    grid(random, shape, shape.rank(), 0, box, out);
  }
  return out;
}

std::uint32_t SceneBuilder::add_tensor(const std::string& name, const TensorSpec& spec,
                                       const std::vector<Chunk>& chunks, std::uint32_t files) {
  auto number = static_cast<std::uint32_t>(manifest_.tensors.size());
  StoredTensor tensor;
  tensor.name = name;
  tensor.spec = spec;
  tensor.first_chunk = manifest_.chunks.size();
  tensor.chunk_count = static_cast<std::uint32_t>(chunks.size());
  if (files_.size() < files) files_.resize(files);
  for (const Chunk& chunk : chunks) {
    auto file = static_cast<std::uint32_t>(random_() % files);
    Bytes bytes = chunk_bytes(number, spec, chunk);
    files_[file].resize(files_[file].size() + random_() % 50, std::byte{0xEE});
    Source source;
    source.kind = Source::Kind::kExtent;
    source.file = file;
    source.offset = files_[file].size();
    source.length = bytes.size();
    if (!bytes.empty()) {
      manifest_.records.push_back({file, crc32(0, bytes), source.offset, source.length});
      source.record = static_cast<std::uint32_t>(manifest_.records.size());
    }
    files_[file].insert(files_[file].end(), bytes.begin(), bytes.end());
    manifest_.chunks.add(chunk, source);
  }
  manifest_.tensors.push_back(tensor);
  StateEntry entry;
  entry.name = name;
  entry.path = {{PathItem::Kind::kKey, 0, name}};
  entry.value = Value::tensor(number);
  manifest_.state.entries.push_back(entry);
  return number;
}

Manifest SceneBuilder::finish() {
  fs_.make_directories(root_);
  for (std::size_t i = 0; i < files_.size(); ++i) {
    std::string name = "source_" + std::to_string(i);
    fs_.write_file(root_ + "/" + name, files_[i]);
    manifest_.files.push_back({name, files_[i].size(), fs_.stat(root_ + "/" + name)->mtime_ns});
  }
  return std::move(manifest_);
}

namespace {

class SceneRenderer final : public OutputRenderer {
 public:
  Bytes render(const OutputPlan& plan, std::size_t segment, const SegmentCrc& crc) const override {
    const Segment& s = plan.segments[segment];
    Bytes bytes(s.length);
    if (s.kind == Segment::Kind::kLiteral) {
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::byte>((segment * 31 + i) & 0xFF);
      }
    } else if (s.payload != kWholeFile) {
      store_le(bytes.data(), crc(s.payload));
    } else {
      std::uint32_t sum = 0;
      for (const OutputFile& file : plan.files) {
        std::uint64_t end = file.first_segment + file.segment_count;
        if (segment < file.first_segment || segment >= end) continue;
        for (std::uint64_t t = file.first_segment; t < end; ++t) {
          if (plan.segments[t].kind == Segment::Kind::kTensor) sum = sum * 31 + crc(t);
        }
      }
      store_le(bytes.data(), sum);
    }
    return bytes;
  }
  static constexpr std::uint64_t kWholeFile = ~std::uint64_t{0};
};

void append(OutputPlan& plan, std::uint64_t& at, Segment segment) {
  segment.offset = at;
  at += segment.length;
  plan.segments.push_back(segment);
}

}  // namespace

OutputPlan make_output(const Manifest& source,
                       const std::vector<std::pair<std::uint32_t, Chunk>>& segments,
                       std::uint32_t files, std::uint64_t literal_bytes) {
  OutputPlan plan;
  plan.format = "scene";
  plan.renderer = std::make_shared<SceneRenderer>();
  for (std::uint32_t f = 0; f < files; ++f) {
    OutputFile file;
    file.path = "out_" + std::to_string(f);
    file.first_segment = plan.segments.size();
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (i % files != f) continue;
      const auto& [tensor, chunk] = segments[i];
      append(plan, at, {Segment::Kind::kLiteral, 0, 0, literal_bytes + i % 7, 0});
      auto bytes = static_cast<std::uint64_t>(chunk.numel()) *
                   static_cast<std::uint64_t>(element_bytes(source.tensors[tensor].spec.dtype));
      append(plan, at, {Segment::Kind::kTensor, tensor, 0, bytes, plan.chunks.size()});
      plan.chunks.push_back(chunk);
      append(plan, at, {Segment::Kind::kDeferred, 0, 0, 4, plan.segments.size() - 1});
    }
    append(plan, at, {Segment::Kind::kDeferred, 0, 0, 4, SceneRenderer::kWholeFile});
    file.segment_count = plan.segments.size() - file.first_segment;
    file.size_bytes = at;
    plan.files.push_back(file);
  }
  return plan;
}

std::vector<Bytes> expected_files(const Manifest& source, const OutputPlan& plan) {
  std::vector<Bytes> files;
  auto bytes_of = [&](std::size_t s) {
    const Segment& segment = plan.segments[s];
    return chunk_bytes(segment.tensor, source.tensors[segment.tensor].spec,
                       plan.chunks[segment.payload].chunk());
  };
  auto crc = [&](std::size_t s) { return crc32(0, bytes_of(s)); };
  for (const OutputFile& file : plan.files) {
    Bytes out;
    for (std::uint64_t i = 0; i < file.segment_count; ++i) {
      std::uint64_t s = file.first_segment + i;
      Bytes part = plan.segments[s].kind == Segment::Kind::kTensor
                       ? bytes_of(s)
                       : plan.renderer->render(plan, s, crc);
      out.insert(out.end(), part.begin(), part.end());
    }
    files.push_back(std::move(out));
  }
  return files;
}

}  // namespace tessera::test
