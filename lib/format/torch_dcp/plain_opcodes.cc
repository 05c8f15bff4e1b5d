#include <fmt/format.h>

#include "lib/format/torch_dcp/plain_reader.h"

namespace tessera::dcp::plain {

void PlainReader::push_global(std::string_view raw_module, std::string_view raw_name) {
  const auto [module, name] = canonical_global(raw_module, raw_name);
  need(is_python_utf8(module) && is_python_utf8(name));
  const auto [found, fresh] = global_numbers_.try_emplace(
      fmt::format("{}\n{}", module, name), static_cast<std::uint32_t>(globals_.size()));
  if (fresh) {
    const GlobalUse::Verdict verdict = classify_global(module, name);
    need(verdict != GlobalUse::Verdict::kDenied);
    globals_.push_back({std::string(module), std::string(name), role_of(module, name)});
    out_.globals.push_back({fmt::format("{}.{}", module, name), verdict, {}});
  }
  push({Kind::kGlobal, found->second, 0});
}

void PlainReader::tuple_from(std::size_t begin) {
  const std::span<const Item> items = stack_.from(begin);
  const Item made{Kind::kTuple, static_cast<std::uint32_t>(items.size()),
                  static_cast<std::int64_t>(pool_.size())};
  pool_.insert(pool_.end(), items.begin(), items.end());
  stack_.shrink(begin);
  push(made);
}

void PlainReader::tuple_n(std::size_t n) {
  need(stack_.size() >= floor() + n);
  tuple_from(stack_.size() - n);
}

void PlainReader::tuple_from_mark() {
  const std::size_t begin = mark_begin();
  marks_.pop_back();
  tuple_from(begin);
}

void PlainReader::need_below(std::size_t begin) const {
  const bool marked = !marks_.empty() && marks_.back() == begin;
  const std::size_t outer = !marked ? floor() : marks_.size() > 1 ? marks_[marks_.size() - 2] : 0;
  need(begin > outer);
}

void PlainReader::append_from(std::size_t begin) {
  need_below(begin);
  need(stack_[begin - 1].kind == Kind::kList);
  std::vector<Item>& list = lists_[stack_[begin - 1].a];
  const std::span<const Item> items = stack_.from(begin);
  list.insert(list.end(), items.begin(), items.end());
}

void PlainReader::set_from(std::size_t begin) {
  const std::span<const Item> pairs = stack_.from(begin);
  need_below(begin);
  need(stack_[begin - 1].kind == Kind::kDict && pairs.size() % 2 == 0);
  if (!pairs.empty() && pairs[0].kind == Kind::kIndex)
    return add_storage(stack_[begin - 1].a, pairs);
  std::vector<Item>& dict = dicts_[stack_[begin - 1].a];
  dict.insert(dict.end(), pairs.begin(), pairs.end());
}

void PlainReader::call() {
  const Item arguments = pop(), callable = pop();
  need(callable.kind == Kind::kGlobal);
  const std::span<const Item> given = items_of(arguments);
  const Role role = globals_[callable.a].role;
  if (role == Role::kPath) return push_path(arguments);
  need(given.size() == 1);
  if (role == Role::kSize) {
    const Item numbers = given[0];
    drop(arguments);
    return push_size(numbers);
  }
  need(role == Role::kEnum && (given[0].kind == Kind::kInt || given[0].kind == Kind::kText));
  drop(arguments);
  push({Kind::kOpaque, 0, 0});
}

void PlainReader::push_path(const Item& parts) {
  std::string text;
  for (const Item& part : items_of(parts)) {
    if (!text.empty() && !text.ends_with('/')) text += '/';
    text += text_of(part);
  }
  drop(parts);
  push_text(text);
}

void PlainReader::push_size(const Item& numbers) {
  const std::span<const Item> values = items_of(numbers);
  need(values.size() <= static_cast<std::size_t>(kMaxRank));
  sizes_.push_back(out_.coordinates.size() << kCountBits | values.size());
  for (const Item& value : values) {
    need(value.kind == Kind::kInt && value.n >= 0);
    out_.coordinates.push_back(value.n);
  }
  drop(numbers);
  push({Kind::kSize, static_cast<std::uint32_t>(sizes_.size() - 1), 0});
}

void PlainReader::new_object() {
  const Item arguments = pop(), cls = pop();
  need(cls.kind == Kind::kGlobal && items_of(arguments).empty());
  switch (globals_[cls.a].role) {
    case Role::kProperties:
      return push({Kind::kProperties, new_in(properties_), 0});
    case Role::kBytes:
      return push({Kind::kBytes, 0, 0});
    case Role::kMetadata:
    case Role::kTensor:
    case Role::kChunk:
    case Role::kIndex:
    case Role::kInfo:
      return push({Kind::kObject, cls.a, 0});
    default:
      if (globals_[cls.a].module != kMetadataModule || globals_[cls.a].name != "StorageMeta")
        leave();
      push({Kind::kObject, cls.a, 0});
  }
}

void PlainReader::step(std::uint8_t opcode) {
  switch (opcode) {
    case 0x80:
      need(in_.position() == 1 && in_.byte() <= 5);
      break;
    case 0x95:  // frames are as the pickler's buffer was: nothing depends on them
      need(in_.number<std::uint64_t>() <= in_.left());
      break;
    case '(':
      marks_.push_back(stack_.size());
      break;
    case '.':
      finish(pop());
      break;
    case 'N':
      push({});
      break;
    case 0x88:
    case 0x89:
      push({Kind::kBool, 0, opcode == 0x88});
      break;
    case 'J':
      push_integer(in_.number<std::int32_t>());
      break;
    case 'K':
      push_integer(in_.byte());
      break;
    case 'M':
      push_integer(in_.number<std::uint16_t>());
      break;
    case 0x8a: {
      const std::string_view bytes = in_.text(in_.byte());
      need(!bytes.empty() && bytes.size() <= 8);
      std::uint64_t bits = bytes.back() & 0x80 ? ~std::uint64_t{0} : 0;
      std::memcpy(&bits, bytes.data(), bytes.size());
      push_integer(static_cast<std::int64_t>(bits));
      break;
    }
    case 0x8c:
      push_text(in_.text(in_.byte()));
      break;
    case 'X':
      push_text(in_.text(in_.number<std::uint32_t>()));
      break;
    case 'c': {
      const std::string module(in_.line());
      push_global(module, in_.line());
      break;
    }
    case 0x93: {
      const Item name = pop(), module = pop();
      push_global(text_of(module), text_of(name));
      break;
    }
    case ')':
      push({Kind::kTuple, 0, static_cast<std::int64_t>(pool_.size())});
      break;
    case '}':
      push_dict();
      break;
    case ']':
      push({Kind::kList, new_in(lists_), 0});
      break;
    case 't':
      tuple_from_mark();
      break;
    case 0x85:
    case 0x86:
    case 0x87:
      tuple_n(opcode - std::size_t{0x84});
      break;
    case 'a':
      need(stack_.size() >= floor() + 2);
      append_from(stack_.size() - 1);
      stack_.shrink(stack_.size() - 1);
      break;
    case 'e':
      append_from(mark_begin());
      drop_to_mark();
      break;
    case 's':
      need(stack_.size() >= floor() + 3);
      set_from(stack_.size() - 2);
      stack_.shrink(stack_.size() - 2);
      break;
    case 'u':
      set_from(mark_begin());
      drop_to_mark();
      break;
    case 'R':
      call();
      break;
    case 0x81:
      new_object();
      break;
    case 'b':
      build();
      break;
    case 0x94:
      memo_put(memo_.size());
      break;
    case 'q':
      memo_put(in_.byte());
      break;
    case 'r':
      memo_put(in_.number<std::uint32_t>());
      break;
    case 'h':
      memo_get(in_.byte());
      break;
    case 'j':
      memo_get(in_.number<std::uint32_t>());
      break;
    default:
      leave();
  }
}

}  // namespace tessera::dcp::plain
