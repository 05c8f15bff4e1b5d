#pragma once
// Which files of a folder belong to which rank. FairScale names no file: users do, with the rank
// somewhere in the name. The files whose names differ in one number alone are a family; its numbers
// are ranks.
//
//   rank_0.pt rank_1.pt             checkpoint_100-shard0.pt ...            weights.0.pt meta.0.pt
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::fairscale {

/// What we name the file of a gathered optimizer: the second where a rank's file has the first.
inline constexpr std::string_view kGatheredFile = "optim.pt";
inline constexpr std::string_view kOtherGatheredFile = "optim_gathered.pt";
inline bool is_gathered_name(std::string_view name) {
  return name == kGatheredFile || name == kOtherGatheredFile;
}

/// Files named <prefix><number><suffix>.
struct FileFamily {
  std::string prefix;
  std::string suffix;
  std::map<std::int64_t, std::string> members;  // number -> name
  std::map<std::int64_t, std::string> twins;    // a second name: rank_1.pt beside rank_01.pt
  std::string name_of(std::int64_t number) const;
};

/// Names of regular, visible files with a suffix that torch.save files have, in natural order.
std::vector<std::string> archive_names(const Directory& directory);

/// Links, folders and the like that are named as a member of the family would be.
std::vector<FileInfo> unusable_members(const Directory& directory, const FileFamily& family);

/// Every family of these names, largest first; a name with several numbers is in several.
std::vector<FileFamily> find_families(const std::vector<std::string>& names);

}  // namespace tessera::fairscale
