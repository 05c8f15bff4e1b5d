#include "lib/format/torch_dcp/plain_metadata.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include "lib/format/torch_dcp/plain_reader.h"

namespace tessera::dcp {
namespace plain {

void PlainReader::finish(const Item& root) {
  need(root.kind == Kind::kMetadata && stack_.empty() && marks_.empty());
  const Item *entries = nullptr, *planner = nullptr, *storage = nullptr;
  bool has_storage_meta = false;
  std::string version;
  const std::vector<Item>& pairs = dicts_[static_cast<std::size_t>(root.n)];
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    const std::string& key = text_of(pairs[i]);
    const Item& value = pairs[i + 1];
    if (key == "state_dict_metadata" && !entries && value.kind == Kind::kDict) {
      entries = &value;
    } else if (key == "planner_data" && !planner &&
               (value.kind == Kind::kDict || value.kind == Kind::kNone)) {
      planner = &value;
    } else if (key == "storage_data" && !storage && value.kind == Kind::kDict) {
      storage = &value;
    } else if (key == "storage_meta" && !has_storage_meta &&
               (value.kind == Kind::kStorageMeta || value.kind == Kind::kNone)) {
      has_storage_meta = true;
    } else {
      need(key == "version" && version.empty());
      if (value.kind == Kind::kNone) continue;
      need(text_of(value).starts_with("1."));
      version = text_of(value);
    }
  }
  need(entries && storage && dicts_[storage->a].empty());
  need(!storage_dict_ || *storage_dict_ == storage->a);
  read_entries(dicts_[entries->a]);
  if (planner && planner->kind == Kind::kDict) read_paths(dicts_[planner->a]);
  for (DcpStorage& item : out_.storage) item.entry = entry_of(item.entry);
  if (!version.empty()) out_.provenance["dcp_version"] = version;
  out_.dialect = "DCP, PyTorch ";
  if (!version.empty()) {
    out_.dialect += fmt::format("2.10 or newer (version {})", printable(version));
  } else {
    out_.dialect += has_storage_meta ? "2.4 to 2.9" : "2.3";
  }
  stopped_ = true;
}

std::uint32_t PlainReader::entry_of(std::uint32_t text) const {
  need(text < entry_numbers_.size() && entry_numbers_[text] != DcpStorage::kNoEntry);
  return entry_numbers_[text];
}

void PlainReader::read_entries(const std::vector<Item>& pairs) {
  entry_numbers_.assign(texts_.size(), DcpStorage::kNoEntry);
  out_.entries.reserve(pairs.size() / 2);
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    DcpEntry entry;
    entry.name = text_of(pairs[i]);
    std::uint32_t& number = entry_numbers_[pairs[i].a];
    need(number == DcpStorage::kNoEntry);
    number = static_cast<std::uint32_t>(out_.entries.size());
    entry.path.push_back(key_item(entry.name));
    if (pairs[i + 1].kind != Kind::kBytes) {
      need(pairs[i + 1].kind == Kind::kTensor);
      fill(entry, tensors_[pairs[i + 1].a]);
    }
    out_.entries.push_back(std::move(entry));
  }
}

void PlainReader::fill(DcpEntry& entry, const TensorMeta& tensor) const {
  const Properties& properties = properties_[tensor.properties];
  const Size size = size_of(tensor.size);
  need(properties.dtype.has_value());
  entry.is_tensor = true;
  entry.requires_grad = properties.requires_grad;
  entry.spec.dtype = *properties.dtype;
  entry.spec.shape = Shape::checked(std::span(out_.coordinates).subspan(size.first, size.count));
  entry.spec.size_bytes();  // throws on overflow
  entry.first_coordinate = tensor.first_coordinate;
  entry.chunk_count = tensor.chunk_count;
}

void PlainReader::read_paths(const std::vector<Item>& pairs) {
  out_.has_planner_data = true;
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    const std::string& name = text_of(pairs[i]);
    const std::span<const Item> steps = items_of(pairs[i + 1]);
    need(steps.size() <= static_cast<std::size_t>(kMaxValueDepth));
    Path path;
    for (const Item& step : steps) {
      PathItem& item = path.emplace_back();
      if (step.kind == Kind::kText) {
        item.key = text_of(step);
      } else {
        need(step.kind == Kind::kInt && step.n >= 0);
        item.kind = PathItem::Kind::kIndex;
        item.index = step.n;
      }
    }
    need(dotted(path) == name);
    out_.entries[entry_of(pairs[i].a)].path = std::move(path);
  }
}

}  // namespace plain

std::optional<DcpMetadata> read_plain_metadata(const ByteWindow& window, std::string_view file) {
  DcpMetadata out;
  try {
    plain::PlainReader(window, out).run();
  } catch (const LeaveIt&) {
    return std::nullopt;
  } catch (const Error& error) {
    if (error.code() == Code::kIo) throw;
    return std::nullopt;
  }
  for (GlobalUse& use : out.globals) use.file = std::string(file);
  return out;
}

}  // namespace tessera::dcp
