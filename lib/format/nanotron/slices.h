#pragma once
// What the metadata of a rank's file says of its place in the whole parameter. Pure.
//
//   unsharded_shape            "(24, 8)"
//   local_global_slices_pairs  "((0,4,None),(None,None,None))#((8,12,None),(None,None,None));..."
//                              for each part: its slices in the file's tensor, and in the whole
//
// A slice is Python's (start, stop, step); None, None is all of the dim.
// Source: nanotron/serialize/metadata.py, TensorMetadata and SlicesPair.
#include <tessera/tensor/box.h>

#include <string_view>
#include <vector>

namespace tessera::nanotron {

inline constexpr std::string_view kSlices = "local_global_slices_pairs";
inline constexpr std::string_view kWholeShape = "unsharded_shape";

struct SlicePair {
  Box local;
  Box whole;
};

/// Throws kCorrupt for text of another form.
Shape parse_shape(std::string_view text);
/// Parts of a tensor of shape `local` in one of shape `whole`. Throws kCorrupt for text of another
/// form and for slices that leave their tensor or differ in size; kUnsupported for steps.
std::vector<SlicePair> parse_slices(std::string_view text, const Shape& local, const Shape& whole);

}  // namespace tessera::nanotron
