#include "tests/support/convert_case.h"

#include <tessera/base/error.h>
#include <tessera/encoding/json.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/sample_case.h"

namespace tessera::testing {

std::string load_sample(MemoryFileSystem& fs, const std::string& name) {
  namespace std_fs = std::filesystem;
  std_fs::path root = std_fs::path(TESSERA_SOURCE_DIR) / "sample_checkpoints" / name / "checkpoint";
  fs.make_directories("/source");
  std::vector<std::string> top;
  for (const auto& entry : std_fs::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    std::string relative = std_fs::relative(entry.path(), root).string();
    std::ifstream stream(entry.path(), std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    fs.write_file("/source/" + relative, as_bytes(text));
    top.push_back(relative);
  }
  return top.size() == 1 ? "/source/" + top[0] : "/source";
}

OpenedContent content_at(FileSystem& fs, const std::string& path) {
  OpenedCheckpoint opened = open_checkpoint(fs, path);
  opened.locate_all({});
  OpenedContent content;
  content.tensors = content_of(opened.manifest, *opened.directory);
  content.values = values_of(opened.manifest, *opened.directory);
  content.chunks = chunk_set(opened.manifest);
  return content;
}

std::map<std::string, std::string> bytes_below(const MemoryFileSystem& fs,
                                               const std::string& path) {
  std::map<std::string, std::string> all = fs.contents(path);
  std::erase_if(all,
                [](const auto& entry) { return entry.first.ends_with("tessera.manifest.json"); });
  return all;
}

ConvertOptions convert_options(const std::string& from, const std::string& to,
                               std::optional<std::int64_t> world_size, const std::string& format) {
  ConvertOptions options;
  options.source = from;
  options.destination = to;
  options.to = format;
  options.target.world_size = world_size;
  options.memory_limit_bytes = 64 << 20;
  options.threads = 1;
  return options;
}

Status status_of(FileSystem& fs, const ConvertOptions& options) {
  try {
    convert(fs, options);
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

namespace {

Value string_entry(const char* name, const std::string& text) {
  return Value::dict({{Value::string(name), Value::string(text)}});
}

Value joined(std::initializer_list<Value> parts) {
  ValueDict out;
  for (const Value& part : parts)
    out.insert(out.end(), part.as_dict().begin(), part.as_dict().end());
  return Value::dict(std::move(out));
}

Value quantizer_row(const HashedQuantizer& q) {
  return joined({string_entry("scheme", q.scheme), string_entry("scales", q.scales),
                 string_entry("zero_points", q.zero_points),
                 Value::dict({{Value::string("scale"), Value::real(q.scale)},
                              {Value::string("zero_point"), Value::integer(q.zero_point)},
                              {Value::string("axis"), Value::integer(q.axis)}})});
}

}  // namespace

std::string hash_report(const HashReport& report) {
  ValueList values, tensors;
  for (const HashedValue& v : report.value_digests)
    values.push_back(joined({string_entry("name", v.name), string_entry("sha256", v.sha256),
                             string_entry("kind", v.is_dict ? "dict" : "value")}));
  const Value old = parse_json(as_bytes(hash_report(std::span(report.tensors))));
  for (std::size_t i = 0; i < report.tensors.size(); ++i) {
    const Value& row = old.find("tensors")->as_list()[i];
    const auto& quantizer = report.tensors[i].quantizer;
    tensors.push_back(
        quantizer
            ? joined({row, Value::dict({{Value::string("quantizer"), quantizer_row(*quantizer)}})})
            : row);
  }
  return dump_json(
      joined({string_entry("schema", "tessera.hash/2"), string_entry("format", report.format),
              Value::dict({{Value::string("tensors"), Value::list(tensors)},
                           {Value::string("values"), Value::list(values)}})}));
}

std::string hash_report(std::span<const HashedTensor> tensors) {
  ValueList rows;
  for (const HashedTensor& t : tensors) {
    ValueList shape;
    for (const std::int64_t extent : t.shape) shape.push_back(Value::integer(extent));
    rows.push_back(Value::dict({{Value::string("name"), Value::string(t.name)},
                                {Value::string("dtype"), Value::string(t.dtype)},
                                {Value::string("shape"), Value::list(std::move(shape))},
                                {Value::string("sha256"), Value::string(t.sha256)}}));
  }
  return dump_json(Value::dict({{Value::string("schema"), Value::string("tessera.hash/1")},
                                {Value::string("tensors"), Value::list(std::move(rows))}}));
}

}  // namespace tessera::testing
