// `latest` is a file whose text names a folder: untrusted, so it must be one plain name of a
// neighbour. A folder with rank files of its own is the checkpoint itself, whatever `latest` says.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <iterator>

#include "lib/format/deepspeed_zero/files.h"

namespace tessera::deepspeed {
namespace {

constexpr std::string_view kSeal = "tessera.manifest.json";
constexpr std::uint64_t kMostPointerBytes = 4096;

/// The neighbour folder that a pointer names; "" if there is none.
std::string tag_in(const Directory& directory, bool sealed) {
  if (sealed && !directory.stat(kSeal)) return "";
  for (const std::string_view pointer : {kLatest, kLatestUniversal}) {
    const auto info = directory.stat(pointer);
    if (!info || info->type != FileType::kRegular || info->size_bytes > kMostPointerBytes) continue;
    Bytes bytes(static_cast<std::size_t>(info->size_bytes));
    directory.open(pointer)->read_at(0, bytes);
    std::string tag(as_text(bytes));
    while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' '))
      tag.pop_back();
    if (tag.empty() || tag.find_first_of(std::string_view("/\0", 2)) != std::string::npos ||
        tag == "." || tag == "..")
      continue;
    const auto there = directory.stat(tag);
    if (there && there->type == FileType::kDirectory) return tag;
  }
  return "";
}

void sort_in(FileName name, Folder& out) {
  using Kind = FileName::Kind;
  if (name.kind == Kind::kOther) return;
  if (name.kind == Kind::kExpert || name.kind == Kind::kPipeline || name.mp_rank > 0) {
    out.foreign.push_back(std::move(name));
  } else if (name.kind == Kind::kModel) {
    out.models.push_back(std::move(name));
  } else {
    const std::int64_t rank = name.dp_rank;
    const auto [known, is_new] = out.optims.emplace(rank, name);
    if (!is_new)
      fail(Code::kCorrupt, fmt::format("rank {} has two optimizer files, {} and {}", rank,
                                       known->second.name, name.name));
  }
}

Folder list_folder(const Directory& directory, const std::string& tag) {
  Folder out;
  out.tag = tag;
  if (!tag.empty()) out.prefix = tag + "/";
  for (const FileInfo& info : directory.list(tag)) {
    FileName name = parse_file_name(info.name);
    if (info.type == FileType::kRegular) {
      sort_in(std::move(name), out);
    } else if (name.kind != FileName::Kind::kOther) {
      out.unusable.push_back(info);
    }
    out.is_universal |= info.type == FileType::kDirectory && info.name == kZeroFolder;
  }
  std::ranges::sort(out.models, {}, &FileName::dp_rank);
  return out;
}

}  // namespace

Folder find_folder(const Place& place, bool sealed) {
  if (!place.file.empty() || !place.directory) return {};
  Folder folder = list_folder(*place.directory, "");
  if (folder.empty()) {
    const std::string tag = tag_in(*place.directory, sealed);
    return tag.empty() ? folder : list_folder(*place.directory, tag);
  }
  std::string_view display = place.display;
  while (display.ends_with('/')) display.remove_suffix(1);
  folder.tag = std::string(display.substr(display.rfind('/') + 1));
  if (folder.tag == "." || folder.tag == "..") folder.tag.clear();
  return folder;
}

void report_unusable(const Folder& folder, Findings& findings) {
  for (const FileInfo& info : folder.unusable) {
    const std::string path = folder.prefix + info.name;
    if (folder.models.empty() && parse_file_name(info.name).kind == FileName::Kind::kModel)
      in_file(path, [&] {
        fail(Code::kCorrupt, fmt::format("{}: it holds the names and shapes of the parameters",
                                         no_regular_file(info.type)));
      });
    findings.error(Finding::kMissingFile, std::string(no_regular_file(info.type)), path);
  }
}

bool is_plain_pipeline(const Folder& folder) {
  const std::vector<FileName> layers = layers_of(folder);
  return !layers.empty() && std::ranges::all_of(layers, [](const FileName& layer) {
    return layer.mp_rank == 0 && layer.layer >= 0;
  });
}

std::map<std::int64_t, Folder> stages_of(const Folder& folder) {
  std::map<std::int64_t, Folder> stages;
  const auto add = [&](const FileName& name) {
    using Kind = FileName::Kind;
    if (name.kind != Kind::kModel && name.kind != Kind::kOptim) return;
    Folder& stage = stages[name.mp_rank];
    stage.prefix = folder.prefix;
    stage.tag = folder.tag;
    if (name.kind == Kind::kModel) stage.models.push_back(name);
    if (name.kind == Kind::kOptim) stage.optims.emplace(name.dp_rank, name);
  };
  for (const FileName& name : folder.models) add(name);
  for (const auto& [rank, name] : folder.optims) add(name);
  for (const FileName& name : folder.foreign) add(name);
  return stages;
}

std::vector<FileName> layers_of(const Folder& folder) {
  std::vector<FileName> layers;
  std::ranges::copy_if(folder.foreign, std::back_inserter(layers),
                       [](const FileName& name) { return name.kind == FileName::Kind::kPipeline; });
  std::ranges::stable_sort(layers, {}, &FileName::layer);
  return layers;
}

bool has_experts(const Folder& folder) {
  return std::ranges::any_of(
      folder.foreign, [](const FileName& name) { return name.kind == FileName::Kind::kExpert; });
}

void refuse_tensor_parallel(const Folder& folder, const Value* model) {
  const auto is_part = [](const FileName& name) {
    return name.kind != FileName::Kind::kExpert && name.mp_rank > 0;
  };
  // A layer's file says it for sure: numbers of others may be those of stages.
  const auto is_layer = [&](const FileName& name) {
    return is_part(name) && name.kind == FileName::Kind::kPipeline;
  };
  auto part = std::ranges::find_if(folder.foreign, is_layer);
  if (part == folder.foreign.end()) part = std::ranges::find_if(folder.foreign, is_part);
  if (part == folder.foreign.end()) return;
  // DeepSpeed's tool asks for the patterns of that field, and raises without it.
  const bool joins = model != nullptr && model->find(kUniversalInfo) != nullptr;
  fail(Code::kUnsupported,
       fmt::format("tensor parallelism ({}): how its parts make whole tensors is not in the "
                   "checkpoint",
                   printable(part->name)),
       joins ? "make it a Universal Checkpoint with DeepSpeed's ds_to_universal, which joins them "
               "by the patterns in the model file, and read that"
             : "load it where it was trained, and save the whole model's state_dict() there");
}

}  // namespace tessera::deepspeed
