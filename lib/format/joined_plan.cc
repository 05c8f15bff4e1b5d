#include "lib/format/joined_plan.h"

#include <tessera/base/error.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

namespace tessera {
namespace {

/// Segments and chunks of the first plan keep their numbers; the second sees its own.
class JoinedRenderer final : public OutputRenderer {
 public:
  JoinedRenderer(std::shared_ptr<const OutputRenderer> first, std::size_t first_segments,
                 OutputPlan second)
      : first_(std::move(first)), first_segments_(first_segments), second_(std::move(second)) {}

  Bytes render(const OutputPlan& plan, std::size_t segment, const SegmentCrc& crc) const override {
    if (segment < first_segments_) return first_->render(plan, segment, crc);
    return second_.renderer->render(second_, segment - first_segments_, [&](std::size_t inner) {
      return crc(inner + first_segments_);
    });
  }

 private:
  std::shared_ptr<const OutputRenderer> first_;
  std::size_t first_segments_;
  OutputPlan second_;
};

}  // namespace

OutputPlan join_plans(OutputPlan first, OutputPlan second) {
  TESSERA_CHECK(!first.single_file && !second.single_file);
  const std::size_t segments = first.segments.size();
  const std::size_t chunks = first.chunks.size();
  for (OutputFile file : second.files) {
    file.first_segment += segments;
    first.files.push_back(std::move(file));
  }
  for (Segment segment : second.segments) {
    if (segment.kind == Segment::Kind::kTensor) segment.payload += chunks;
    first.segments.push_back(segment);
  }
  first.chunks.append(second.chunks);
  std::ranges::move(second.notes, std::back_inserter(first.notes));
  second.notes.clear();
  std::ranges::move(second.left_out, std::back_inserter(first.left_out));
  second.left_out.clear();
  first.restated.insert(first.restated.end(), second.restated.begin(), second.restated.end());
  first.renderer =
      std::make_shared<JoinedRenderer>(std::move(first.renderer), segments, std::move(second));
  return first;
}

}  // namespace tessera
