#pragma once
// What each model-parallel rank holds of the model, and in which order it registered it: what is
// needed to take apart the buckets of its distributed optimizer.
//
//   dp_group_idx_I     group I = stage * tensor-parallel ranks + tensor-parallel rank. Its buckets
//                      are written by its own data-parallel ranks, whose numbers the files' names
//                      carry; so each chunk of a weight is some group's, too
//   stage              groups that hold parts of the same weight; what one of them alone wrote, all
//                      of them hold
//   order              that of .metadata where one rank wrote all that a group holds; else (a fully
//                      parallel save) that of Megatron's own modules, of which two are in use
//
// Source: megatron/core/{optimizer/distrib_optimizer,models/gpt,transformer}, core 0.16.
#include <tessera/state/manifest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::megatron_dist {

/// A parameter of one rank: boxes of one of the model's tensors, behind each other.
struct RankParameter {
  std::uint32_t tensor = 0;
  std::vector<Box> boxes;
  std::int64_t numel = 0;
  bool counts = true;  // false: another group's state is the same
};

/// Orders in which the parameters may have been registered.
struct GroupModel {
  std::vector<std::vector<RankParameter>> orders;
};

/// "__0_1.distcp": rank 0, its second file.
std::string writer_of(const std::string& path);
/// State of an optimizer, not a weight.
bool is_optimizer_entry(std::string_view name);

/// `groups`: writer -> its group, of `count` groups. Returns what is missing, or "".
std::string find_group_models(const Manifest& manifest,
                              const std::map<std::string, std::size_t>& groups, std::size_t count,
                              std::vector<GroupModel>& models);

}  // namespace tessera::megatron_dist
