#include "lib/format/hdf5/keras_files.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/zip_reader.h>

#include <algorithm>
#include <array>
#include <set>

#include "lib/format/probe_errors.h"

namespace tessera::h5 {
namespace {

constexpr std::string_view kKerasSuffix = ".keras";
constexpr std::string_view kIndexSuffix = ".weights.json";
constexpr std::string_view kWeights = "model.weights.h5";
constexpr std::string_view kConfig = "config.json";
constexpr std::array<std::string_view, 2> kTexts = {kConfig, "metadata.json"};
constexpr std::uint64_t kMostTextBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kMostIndexBytes = std::uint64_t{256} << 20;

bool is_zip(const ReadFile& file) {
  std::array<std::byte, 4> head{};
  if (file.size_bytes() < head.size()) return false;
  file.read_at(0, head);
  return as_text(head) == "PK\x03\x04";
}

ZipReader open_zip(const ReadFile& file) {
  return ZipReader(ByteWindow::whole(file), {}, ZipTop::kAsNamed);
}

[[noreturn]] void not_read(const std::string& what, std::string_view path,
                           std::string_view member) {
  fail(Code::kUnsupported, what,
       fmt::format("take it out of the archive and read that: unzip {} {}",
                   path.substr(path.rfind('/') + 1), member));
}

/// An archive of Keras without the one file of weights that it should hold.
[[noreturn]] void no_weights(const ZipReader& zip, std::string_view path) {
  std::vector<std::string> weights;
  for (const ZipEntry& entry : zip.entries())
    if (entry.name.ends_with(".h5")) weights.push_back(printable(entry.name));
  if (weights.empty())
    fail(Code::kUnsupported, fmt::format("the archive holds no {} nor any other weights", kWeights),
         "it may be a model that was saved without them; name the file that has them");
  constexpr std::size_t kMostNamed = 4;
  const std::size_t named = std::min(weights.size(), kMostNamed);
  not_read(fmt::format("the archive holds no {}, but {} other file{} of weights: {}{}", kWeights,
                       weights.size(), weights.size() == 1 ? "" : "s",
                       fmt::join(weights.begin(),
                                 weights.begin() + static_cast<std::ptrdiff_t>(named), ", "),
                       named < weights.size() ? ", ..." : ""),
           path, "'*.h5' '*.weights.json'");
}

[[noreturn]] void malformed(const std::string& what) {
  fail(Code::kCorrupt, fmt::format("no index of Keras weights: {}", what));
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

std::vector<std::string> shards_of(const Value& value) {
  std::vector<std::string> names;
  const auto add = [&](const Value& name) {
    if (!name.is_string()) malformed("a shard's name is no text");
    if (!is_plain_name(name.as_string()))
      malformed(
          fmt::format("\"{}\" is no name of a file in its folder", printable(name.as_string())));
    names.push_back(name.as_string());
  };
  if (value.kind() == Value::Kind::kList) {
    for (const Value& name : value.as_list()) add(name);
  } else {
    add(value);
  }
  return names;
}

}  // namespace

bool has_keras_suffix(std::string_view name) { return name.ends_with(kKerasSuffix); }

bool has_index_suffix(std::string_view name) {
  return name.ends_with(kIndexSuffix) && !name.starts_with('.');
}

bool is_zip_named_keras(const ReadFile& file, std::string_view name) {
  constexpr std::size_t kHeader = 30;  // of the first entry, its name behind it
  if (!has_keras_suffix(name) || !is_zip(file)) return false;
  Bytes head(std::min<std::uint64_t>(kHeader + kWeights.size(), file.size_bytes()));
  file.read_at(0, head);
  const std::string_view first = as_text(head).substr(std::min(kHeader, head.size()));
  return std::ranges::any_of(kTexts, [&](auto text) { return first.starts_with(text); }) ||
         first.starts_with(kWeights);
}

bool looks_like_keras(const ReadFile& file) {
  if (!is_zip(file)) return false;
  try {
    const ZipReader zip = open_zip(file);
    return zip.find(kWeights) != nullptr && zip.find(kConfig) != nullptr;
  } catch (const Error& error) {
    rethrow_unless_of_content(error);
    return false;
  }
}

KerasArchive open_keras(const ReadFile& file) {
  ZipReader zip = open_zip(file);
  const ZipEntry* weights = zip.find(kWeights);
  if (weights == nullptr) no_weights(zip, file.path());
  if (weights->method != 0)
    not_read(fmt::format("{} is compressed in the archive (method {}): its bytes cannot be read "
                         "in place",
                         kWeights, weights->method),
             file.path(), kWeights);
  KerasArchive out;
  out.offset = zip.data_offset(*weights);
  out.length = weights->size_bytes;
  for (const std::string_view name : kTexts) {
    const ZipEntry* text = zip.find(name);
    if (text == nullptr || text->method != 0 || text->size_bytes > kMostTextBytes) continue;
    const Bytes bytes = zip.read(*text);
    out.texts.emplace_back(name, std::string(as_text(bytes)));
  }
  return out;
}

void FilePart::read_at(std::uint64_t offset, MutableBytes out) const {
  if (offset > length_ || out.size() > length_ - offset)
    fail(Code::kCorrupt, fmt::format("the part ends at {}", length_));
  file_.read_at(offset_ + offset, out);
}

KerasIndex parse_keras_index(ByteView json) {
  const Value root = parse_json(json);
  const Value* map = root.find("weight_map");
  if (map == nullptr || !map->is_dict()) malformed("there is no \"weight_map\"");
  KerasIndex out;
  std::set<std::string> shards;
  for (const auto& [key, value] : map->as_dict()) {
    std::string path = key.as_string();
    path.erase(0, path.find_first_not_of('/'));
    std::vector<std::string> names = shards_of(value);
    shards.insert(names.begin(), names.end());
    out.groups.emplace(std::move(path), std::move(names));
  }
  out.shards.assign(shards.begin(), shards.end());
  return out;
}

KerasIndex read_keras_index(const Directory& directory, const std::string& name) {
  return in_file(name, [&] {
    const auto file = directory.open(name);
    if (file->size_bytes() > kMostIndexBytes) malformed("larger than 256 MiB");
    Bytes text(file->size_bytes());
    file->read_at(0, text);
    return parse_keras_index(text);
  });
}

}  // namespace tessera::h5
