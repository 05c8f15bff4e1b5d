#pragma once
// The common state: one pickled dict that all ranks share (common.pt, or the object
// `common_state/shard_0_1`). Each of its top keys is one value, as Megatron hands them around; only
// what holds tensors or an optimizer's param_groups is entered by the rule of flatten().
#include <tessera/format/format_driver.h>
#include <tessera/state/manifest.h>

#include <string>

namespace tessera::megatron_dist {

/// Reads an archive of the checkpoint's folder and appends what it holds to `manifest`, its file
/// included. `optimizer`: what stands in its dict of that name besides (take_group_options). Throws
/// kCorrupt when it is no archive of a dict.
void append_common_file(const Directory& directory, const std::string& path, Manifest& manifest,
                        const ReadOptions& options, const ValueDict& optimizer);

/// Turns the entry of this name, whose value is the common dict (or a list of it alone), into the
/// entries it stands for. No entry of this name: nothing. `optimizer`: as above.
void expand_common_entry(Manifest& manifest, std::string_view name, const ValueDict& optimizer);

/// One archive of the folder as one value. Tensors inside are added to `manifest`, embedded in
/// `name`.
Value read_object_file(const Directory& directory, const std::string& path, const std::string& name,
                       Manifest& manifest, const ReadOptions& options);

}  // namespace tessera::megatron_dist
