#include <tuple>

#include "lib/format/torch_dcp/plain_reader.h"

namespace tessera::dcp::plain {

void PlainReader::free_dict(std::uint32_t number) {
  dicts_[number].clear();
  free_dicts_.push_back(number);
}

void PlainReader::build() {
  const Item state = pop();
  Item& target = top();
  if (target.kind == Kind::kProperties) return build_properties(properties_[target.a], state);
  need(target.kind == Kind::kObject && state.kind == Kind::kDict);
  switch (globals_[target.a].role) {
    case Role::kChunk:
      target = chunk(state.a);
      break;
    case Role::kIndex:
      target = index(state.a);
      break;
    case Role::kInfo:
      target = info(state.a);
      break;
    case Role::kTensor:
      target = tensor(state.a);
      break;
    case Role::kMetadata:
      target = {Kind::kMetadata, 0, state.a};
      return;
    default:
      storage_meta(state.a);
      target = {Kind::kStorageMeta, 0, 0};
  }
  free_dict(state.a);
}

void PlainReader::build_properties(Properties& properties, const Item& state) {
  const std::span<const Item> items = items_of(state);
  need(!properties.dtype && !items.empty() && items[0].kind == Kind::kGlobal);
  const Global& dtype = globals_[items[0].a];
  need(dtype.module == "torch");
  properties.dtype = dtype_from_torch_name(dtype.name);
  need(properties.dtype.has_value());
  if (items.size() > 2 && items[2].kind == Kind::kBool) properties.requires_grad = items[2].n != 0;
  drop(state);
}

Item PlainReader::chunk(std::uint32_t dict) {
  const auto [offsets, sizes] = attributes<2>(dict, {"offsets", "sizes"});
  need(offsets.kind == Kind::kSize && sizes.kind == Kind::kSize);
  const Size origin = size_of(offsets.a), extents = size_of(sizes.a);
  need(origin.count == extents.count);
  std::uint64_t first = origin.first;
  if (extents.first != first + origin.count) first = join(origin, extents);
  std::uint64_t numel = 1;
  for (std::uint32_t d = 0; d < origin.count; ++d) {
    const std::int64_t extent = out_.coordinates[first + origin.count + d];
    need(checked_add(out_.coordinates[first + d], extent).has_value());
    const auto grown =
        checked_mul(numel, static_cast<std::uint64_t>(std::max<std::int64_t>(extent, 1)));
    need(grown && *grown <= INT64_MAX);
    numel = *grown;
  }
  return {Kind::kChunk, origin.count, static_cast<std::int64_t>(first)};
}

std::uint64_t PlainReader::join(const Size& origin, const Size& extents) {
  const std::uint64_t first = out_.coordinates.size();
  for (const Size& size : {origin, extents}) copy_coordinates(size.first, size.count);
  return first;
}

void PlainReader::copy_coordinates(std::uint64_t from, std::uint64_t count) {
  need(count <= most_copied_);  // a few bytes may name many numbers
  most_copied_ -= count;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::int64_t value = out_.coordinates[from + i];
    out_.coordinates.push_back(value);
  }
}

Item PlainReader::index(std::uint32_t dict) {
  Item fqn, number, offset;
  if (dicts_[dict].size() == 4) {  // a value's
    std::tie(fqn, number) = std::tuple_cat(attributes<2>(dict, {"fqn", "index"}));
  } else {
    std::tie(fqn, number, offset) = std::tuple_cat(attributes<3>(dict, {"fqn", "index", "offset"}));
  }
  need(fqn.kind == Kind::kText);
  need(offset.kind == Kind::kSize || offset.kind == Kind::kNone);
  return {Kind::kIndex, fqn.a, offset.kind == Kind::kSize ? std::int64_t{offset.a} : -1};
}

Item PlainReader::info(std::uint32_t dict) {
  std::array<Item, 3> values{};
  if (dicts_[dict].size() == 6) {
    values = attributes<3>(dict, {"relative_path", "offset", "length"});
  } else {
    const auto [path, offset, length, transforms] =
        attributes<4>(dict, {"relative_path", "offset", "length", "transform_descriptors"});
    need(transforms.kind == Kind::kNone);
    values = {path, offset, length};
  }
  need(values[0].kind == Kind::kText && values[1].kind == Kind::kInt && values[1].n >= 0 &&
       values[2].kind == Kind::kInt && values[2].n >= 0);
  infos_.push_back(
      {static_cast<std::uint64_t>(values[1].n), static_cast<std::uint64_t>(values[2].n)});
  return {Kind::kInfo, values[0].a, static_cast<std::int64_t>(infos_.size() - 1)};
}

Item PlainReader::tensor(std::uint32_t dict) {
  const auto [properties, size, chunks] = attributes<3>(dict, {"properties", "size", "chunks"});
  need(properties.kind == Kind::kProperties && size.kind == Kind::kSize &&
       chunks.kind == Kind::kList);
  std::vector<Item>& list = lists_[chunks.a];
  const std::uint32_t rank = size_of(size.a).count;
  TensorMeta made{properties.a, size.a, out_.coordinates.size(),
                  static_cast<std::uint32_t>(list.size())};
  bool follow = true;
  for (std::size_t i = 0; i < list.size(); ++i) {
    need(list[i].kind == Kind::kChunk && list[i].a == rank);
    follow = follow && list[i].n == list[0].n + static_cast<std::int64_t>(2 * rank * i);
  }
  if (follow && !list.empty()) {
    made.first_coordinate = static_cast<std::uint64_t>(list[0].n);
  } else {
    for (const Item& chunk : list)
      copy_coordinates(static_cast<std::uint64_t>(chunk.n), 2 * std::uint64_t{rank});
  }
  list = {};
  tensors_.push_back(made);
  return {Kind::kTensor, static_cast<std::uint32_t>(tensors_.size() - 1), 0};
}

void PlainReader::storage_meta(std::uint32_t dict) {
  const std::vector<Item>& pairs = dicts_[dict];
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    const std::string& key = text_of(pairs[i]);
    const Item& value = pairs[i + 1];
    need(value.kind == Kind::kText || value.kind == Kind::kNone ||
         (value.kind == Kind::kList && lists_[value.a].empty()));
    if (value.kind != Kind::kText || (key == "checkpoint_id" && text_of(value).empty())) continue;
    need(key == "checkpoint_id" || key == "save_id" || key == "load_id");
    out_.provenance[key] = text_of(value);
  }
}

void PlainReader::add_storage(std::uint32_t dict, std::span<const Item> pairs) {
  need(!storage_dict_ || *storage_dict_ == dict);
  need(dicts_[dict].empty());
  storage_dict_ = dict;
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    const Item &index = pairs[i], &info = pairs[i + 1];
    need(index.kind == Kind::kIndex && info.kind == Kind::kInfo);
    need(static_cast<std::size_t>(info.n) < infos_.size());
    DcpStorage item;
    item.entry = index.a;  // a text's number until finish()
    if (index.n >= 0) {
      const Size size = size_of(static_cast<std::size_t>(index.n));
      item.has_origin = true;
      item.first_coordinate = size.first;
      item.rank = size.count;
    }
    item.file = file(info.a);
    const Info& place = infos_[static_cast<std::size_t>(info.n)];
    item.offset = place.offset;
    item.length = place.length;
    out_.storage.push_back(item);
  }
  infos_.clear();  // the memo keeps none, so that nobody asks for them again
}

std::uint32_t PlainReader::file(std::uint32_t text) {
  if (text >= file_numbers_.size()) file_numbers_.resize(texts_.size(), DcpStorage::kNoEntry);
  std::uint32_t& number = file_numbers_[text];
  if (number == DcpStorage::kNoEntry) {
    number = static_cast<std::uint32_t>(out_.files.size());
    out_.files.push_back(texts_[text]);
  }
  return number;
}

}  // namespace tessera::dcp::plain
