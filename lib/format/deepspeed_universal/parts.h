#pragma once
// Reader and writer of deepspeed-universal.
#include <tessera/format/format_driver.h>

namespace tessera::deepspeed {

Manifest read_universal(const Place& place, const ReadOptions& options);
OutputPlan plan_universal(const Manifest& source, const TargetRequest& request);

// Keys of a parameter's files.
inline constexpr std::string_view kParam = "param";
inline constexpr std::string_view kCatDim = "cat_dim";
/// deepspeed.universal.<name>: what a parameter's files say besides the tensor.
inline constexpr std::string_view kUniversalNotes = "universal";

}  // namespace tessera::deepspeed
