#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/output_plan.h>

#include <unordered_set>

namespace tessera {
namespace {

template <class... Args>
[[noreturn]] void broken(fmt::format_string<Args...> format, Args&&... args) {
  fail(Code::kInternal, fmt::format("output plan: {}; please report this",
                                    fmt::format(format, std::forward<Args>(args)...)));
}

template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) broken(format, std::forward<Args>(args)...);
}

bool is_plain_relative(std::string_view path) {
  for (const std::string_view part : split(path, '/'))
    if (part.empty() || part == "." || part == "..") return false;
  return true;
}

/// There may be millions: texts are made of what is broken alone.
void check_tensor_segment(const OutputPlan& plan, const Segment& segment, const Manifest& source) {
  require(segment.tensor < source.tensors.size(), "a segment of tensor {} of {}", segment.tensor,
          source.tensors.size());
  require(segment.payload < plan.chunks.size(), "a segment of chunk {} of {}", segment.payload,
          plan.chunks.size());
  const StoredTensor& tensor = source.tensors[segment.tensor];
  const ChunkView chunk = plan.chunks[segment.payload];
  const auto text = [&] {
    return fmt::format("chunk {} of tensor \"{}\" {}", chunk.to_string(), printable(tensor.name),
                       tensor.spec.to_string());
  };
  if (!chunk.has_box_in(tensor.spec.shape)) broken("{} lies outside of it", text());
  if (!chunk.has_range_in_box()) broken("the range of {} lies outside its box", text());
  const auto bits_per_element = static_cast<std::uint64_t>(bits(tensor.spec.dtype));
  const auto piece_bits = checked_mul(static_cast<std::uint64_t>(chunk.numel()), bits_per_element);
  if (!piece_bits || (*piece_bits + 7) / 8 != segment.length)
    broken("{} bytes for {}", segment.length, text());
  if (is_sub_byte(tensor.spec.dtype) && chunk.numel() != tensor.spec.shape.numel())
    broken("{} cannot be cut", text());
}

}  // namespace

std::uint64_t OutputPlan::total_bytes() const {
  std::uint64_t total = 0;
  for (const OutputFile& file : files) total += file.size_bytes;
  return total;
}

void OutputPlan::check(const Manifest& source) const {
  require(!single_file || files.size() == 1, "{} files for a one-file result", files.size());
  std::unordered_set<std::string_view> paths;
  std::uint64_t next_segment = 0;
  std::uint64_t total = 0;
  for (const OutputFile& file : files) {
    require(single_file ? file.path.empty() : is_plain_relative(file.path), "the file name \"{}\"",
            printable(file.path));
    require(paths.insert(file.path).second, "file \"{}\" twice", printable(file.path));
    require(file.first_segment == next_segment, "file \"{}\" starts at segment {}, not {}",
            file.path, file.first_segment, next_segment);
    require(file.segment_count <= segments.size() - next_segment,
            "file \"{}\" has more segments than there are", file.path);
    std::uint64_t offset = 0;
    for (std::uint64_t i = 0; i < file.segment_count; ++i, ++next_segment) {
      const Segment& segment = segments[next_segment];
      require(segment.offset == offset, "segment {} of \"{}\" at byte {}, not {}", i, file.path,
              segment.offset, offset);
      const auto end = checked_add(offset, segment.length);
      require(end.has_value(), "file \"{}\" is above 2^64 - 1 bytes", file.path);
      offset = *end;
      if (segment.kind == Segment::Kind::kTensor) {
        check_tensor_segment(*this, segment, source);
      } else {
        require(renderer != nullptr, "bytes to render and no renderer");
      }
    }
    require(offset == file.size_bytes, "file \"{}\" has {} bytes in segments, {} declared",
            file.path, offset, file.size_bytes);
    const auto sum = checked_add(total, file.size_bytes);
    require(sum.has_value(), "more than 2^64 - 1 bytes in all");
    total = *sum;
  }
  require(next_segment == segments.size(), "{} segments belong to no file",
          segments.size() - next_segment);
}

}  // namespace tessera
