#include "tests/support/sample_case.h"

#include <fmt/format.h>
#include <tessera/encoding/json.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/storage/checksum.h>
#include <tessera/storage/file_system.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace tessera::testing {
namespace {

std::string sample_root() { return TESSERA_SOURCE_DIR "/sample_checkpoints/"; }

std::string sha256_of(const TensorReader& reader, const Manifest& manifest, std::uint32_t index) {
  const TensorSpec& spec = manifest.tensors[index].spec;
  Bytes bytes(static_cast<std::size_t>(spec.size_bytes()));
  if (!bytes.empty()) reader.read(index, 0, spec.shape.numel(), bytes);
  return hex(sha256(bytes));
}

std::string line(std::string_view dtype, const Shape& shape, std::string_view sum) {
  return fmt::format("{} {} {}", dtype, shape.to_string(), sum);
}

/// The oracle tags tuples; commands print them as lists.
Value without_tuple_tags(const Value& value) {
  if (value.kind() == Value::Kind::kList) {
    ValueList items;
    for (const Value& item : value.as_list()) items.push_back(without_tuple_tags(item));
    return Value::list(std::move(items));
  }
  if (!value.is_dict()) return value;
  if (value.as_dict().size() == 1 && value.find("__tuple__"))
    return without_tuple_tags(*value.find("__tuple__"));
  ValueDict entries;
  for (const auto& [key, item] : value.as_dict())
    entries.emplace_back(key, without_tuple_tags(item));
  return Value::dict(std::move(entries));
}

}  // namespace

SampleCase::SampleCase(const std::string& case_name, const std::string& folder) : name(case_name) {
  const std::string path = sample_root() + name;
  const auto fs = make_posix_file_system();
  directory = fs->open_directory(folder.empty() ? path : path + "/" + folder);
  std::ifstream in(path + "/expected.json", std::ios::binary);
  if (!in) return;
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  JsonLimits limits;
  limits.max_depth = 64;
  expected = parse_json(as_bytes(text), limits);
}

std::vector<std::string> sample_names(const std::string& group) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(sample_root() + group))
    if (entry.is_directory()) names.push_back(group + "/" + entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::map<std::string, std::string> content_of(const Manifest& manifest,
                                              const Directory& directory) {
  const TensorReader reader(manifest, directory, TransferOptions{});
  std::map<std::string, std::string> content;
  for (const StateEntry& entry : manifest.state.entries) {
    if (!entry.value.is_tensor()) continue;
    const std::uint32_t index = entry.value.tensor_index();
    const TensorSpec& spec = manifest.tensors[index].spec;
    content[entry.name] =
        line(torch_name(spec.dtype), spec.shape, sha256_of(reader, manifest, index));
  }
  return content;
}

std::map<std::string, std::string> expected_content(const Value& expected) {
  std::map<std::string, std::string> content;
  for (const Value& tensor : expected.find("tensors")->as_list()) {
    std::vector<std::int64_t> extents;
    for (const Value& extent : tensor.find("shape")->as_list()) extents.push_back(extent.as_int());
    content[tensor.find("key")->as_string()] =
        line(tensor.find("dtype")->as_string(), Shape(std::move(extents)),
             tensor.find("sha256")->as_string());
  }
  return content;
}

std::map<std::string, std::string> values_of(const Manifest& manifest, const Directory& directory) {
  const TensorReader reader(manifest, directory, TransferOptions{});
  const auto describe = [&](std::uint32_t index) {
    const TensorSpec& spec = manifest.tensors[index].spec;
    ValueList shape;
    for (const std::int64_t extent : spec.shape.extents()) shape.push_back(Value::integer(extent));
    return Value::dict(
        {{Value::string("key"), Value::string("")},
         {Value::string("dtype"), Value::string(std::string(torch_name(spec.dtype)))},
         {Value::string("shape"), Value::list(std::move(shape))},
         {Value::string("sha256"), Value::string(sha256_of(reader, manifest, index))}});
  };
  std::map<std::string, std::string> values;
  for (const StateEntry& entry : manifest.state.entries) {
    if (entry.value.is_tensor()) continue;
    ValueBudget budget(1 << 20);
    values[entry.name] = canonical_json(to_json_value(entry.value, describe, budget));
  }
  return values;
}

std::map<std::string, std::string> expected_values(const Value& expected) {
  std::map<std::string, std::string> values;
  const Value* tree = expected.find("values");
  if (!tree) return values;
  for (const auto& [key, value] : tree->as_dict())
    values[key.as_string()] = canonical_json(without_tuple_tags(value));
  return values;
}

std::vector<std::uint32_t> all_tensors(const Manifest& manifest) {
  std::vector<std::uint32_t> indices(manifest.tensors.size());
  for (std::uint32_t i = 0; i < indices.size(); ++i) indices[i] = i;
  return indices;
}

std::vector<std::string> chunk_set(const Manifest& manifest, bool with_empty) {
  std::vector<std::string> set;
  for (const StoredTensor& tensor : manifest.tensors) {
    if (tensor.embedded) continue;
    for (std::uint32_t i = 0; i < tensor.chunk_count; ++i) {
      const Box box = manifest.chunk(tensor, i).box;
      if (box.empty() && !with_empty) continue;
      set.push_back(fmt::format("{} {} {}", tensor.name, Shape(box.origin).to_string(),
                                box.shape.to_string()));
    }
  }
  std::sort(set.begin(), set.end());
  return set;
}

}  // namespace tessera::testing
