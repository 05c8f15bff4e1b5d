#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/live_state.h>
#include <tessera/tensor/packed_chunks.h>
#include <tessera/tensor/strides.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "lib/state/live/live_structure.h"

namespace tessera {

namespace {

/// A tree of the caller's own: large, but no trap.
constexpr std::uint64_t kMostLiveLeaves = std::uint64_t{1} << 32;

/// The last element that the strides reach, counted in elements from the first.
std::optional<std::int64_t> reach(const LivePiece& piece) {
  std::int64_t last = 0;
  for (int d = 0; d < piece.chunk.box.rank(); ++d) {
    const auto steps =
        checked_mul(piece.chunk.box.shape[d] - 1, piece.strides[static_cast<std::size_t>(d)]);
    const auto sum = steps ? checked_add(last, *steps) : std::nullopt;
    if (!sum) return std::nullopt;
    last = *sum;
  }
  return last;
}

/// Whether the bytes from the first element to the end of the last are all in this address space.
bool is_addressable(const LivePiece& piece, std::int64_t last, DType dtype) {
  const auto elements = checked_add(last, std::int64_t{1});
  const auto bits_of = elements ? checked_mul(*elements, std::int64_t{bits(dtype)}) : std::nullopt;
  if (!bits_of) return false;
  const auto bytes = static_cast<std::uintptr_t>(ceil_div(*bits_of, 8));
  return bytes <=
         std::numeric_limits<std::uintptr_t>::max() - reinterpret_cast<std::uintptr_t>(piece.data);
}

void check_strides(DType dtype, const LivePiece& piece, bool writable) {
  if (piece.strides.empty()) return;
  if (!piece.chunk.is_whole_box())
    fail(Code::kInvalidArgument,
         fmt::format("{} is a range of a ravel and has strides", piece.chunk.to_string()),
         "such pieces are dense: leave the strides empty");
  if (piece.strides.size() != static_cast<std::size_t>(piece.chunk.box.rank()))
    fail(Code::kInvalidArgument,
         fmt::format("{} strides for {} dimensions", piece.strides.size(), piece.chunk.box.rank()));
  if (piece.chunk.numel() == 0) return;
  const bool below = std::ranges::any_of(piece.strides, [](std::int64_t s) { return s < 0; });
  const auto last = below ? std::nullopt : reach(piece);
  if (!last || !is_addressable(piece, *last, dtype))
    fail(Code::kInvalidArgument,
         fmt::format("strides [{}] of {}: below 0, or out of reach", fmt::join(piece.strides, ","),
                     piece.chunk.to_string()));
  if (writable && !elements_apart(piece.chunk.box.shape.extents(), piece.strides))
    fail(Code::kInvalidArgument,
         fmt::format("elements of {} may share memory (strides [{}])", piece.chunk.to_string(),
                     fmt::join(piece.strides, ",")),
         "an expanded tensor cannot be filled in place");
}

void check_piece(const TensorSpec& spec, const LivePiece& piece, bool writable) {
  const Chunk& chunk = piece.chunk;
  if (!ChunkView(chunk).lies_in(spec.shape))
    fail(Code::kInvalidArgument,
         fmt::format("its piece {} is not inside {}", chunk.to_string(), spec.to_string()));
  if (chunk.numel() > 0 && piece.data == nullptr)
    fail(Code::kInvalidArgument, fmt::format("its piece {} has no memory", chunk.to_string()));
  if (is_sub_byte(spec.dtype) && chunk.numel() > 0 &&
      (chunk != Chunk::whole_of(Box::whole(spec.shape)) || !piece.strides.empty()))
    fail(Code::kUnsupported, fmt::format("a part of a tensor of {}, whose elements do not start at "
                                         "byte borders",
                                         torch_name(spec.dtype)));
  check_strides(spec.dtype, piece, writable);
}

void check_spec(const TensorSpec& spec) {
  if (std::ranges::find(all_dtypes(), spec.dtype) == all_dtypes().end())
    fail(Code::kInvalidArgument,
         fmt::format("its type is number {}, which is no DType", static_cast<int>(spec.dtype)));
  try {
    Shape::checked(spec.shape.extents());
    spec.size_bytes();
  } catch (const Error& error) {  // of a file it would be damage
    fail(Code::kInvalidArgument, error.status().message);
  }
  if (is_quantized(spec.dtype))
    fail(Code::kUnsupported, fmt::format("a live tensor of {}", torch_name(spec.dtype)));
}

}  // namespace

LiveState LiveState::of(const Value& tree, std::vector<LiveTensor> tensors) {
  LiveState state;
  ValueBudget budget(kMostLiveLeaves);
  StateDict dict = flatten(tree, budget);
  state.edit([&](LiveContents& contents) {
    contents.dict = std::move(dict);
    contents.tensors = std::move(tensors);
  });
  return state;
}

void LiveState::edit(const std::function<void(LiveContents& contents)>& change) {
  const auto forget = [this] {
    has_structure_ = false;
    is_last_new_ = false;
    index_.clear();
  };
  forget();
  try {
    change(contents_);
  } catch (...) {
    forget();
    throw;
  }
  forget();  // what the change has called made some anew
  structure_ = {};
  has_structure_ = append_structure(contents_, structure_);
}

void LiveState::remove_if(const std::function<bool(const StateEntry& entry)>& is_gone) {
  std::vector<bool> gone;
  for (const StateEntry& entry : contents_.dict.entries) gone.push_back(is_gone(entry));
  if (std::ranges::find(gone, true) == gone.end()) return;
  edit([&](LiveContents& contents) {
    std::vector<StateEntry> entries;
    std::vector<LiveTensor> tensors;
    std::unordered_map<std::uint32_t, std::uint32_t> moved;
    for (std::size_t e = 0; e < gone.size(); ++e) {
      StateEntry& entry = contents.dict.entries[e];
      if (gone[e]) {
        contents.per_rank.erase(entry.name);
        continue;
      }
      if (entry.value.is_tensor() && entry.value.tensor_index() < contents.tensors.size()) {
        const std::uint32_t from = entry.value.tensor_index();
        const auto [to, first] = moved.emplace(from, static_cast<std::uint32_t>(tensors.size()));
        if (first) tensors.push_back(std::move(contents.tensors[from]));
        entry.value = Value::tensor(to->second);
      }
      entries.push_back(std::move(entry));
    }
    contents.dict.entries = std::move(entries);
    contents.tensors = std::move(tensors);
  });
}

const StateEntry* LiveState::find_entry(const std::string& name) {
  const std::vector<StateEntry>& entries = contents_.dict.entries;
  const std::hash<std::string> hash;
  if (index_.size() > entries.size()) index_.clear();
  for (std::size_t next = index_.size(); next < entries.size(); ++next)
    index_.emplace(hash(entries[next].name), next);
  const auto [first, last] = index_.equal_range(hash(name));
  for (auto found = first; found != last; ++found)
    if (entries[found->second].name == name) return &entries[found->second];
  return nullptr;
}

void LiveState::check_new(const std::string& name) {
  if (find_entry(name) != nullptr)
    fail(Code::kInvalidArgument, fmt::format("the state has a \"{}\" already", printable(name)));
}

std::uint32_t LiveState::append_tensor(Path path, LiveTensor tensor) {
  const auto index = static_cast<std::uint32_t>(contents_.tensors.size());
  contents_.tensors.push_back(std::move(tensor));
  append_value(std::move(path), Value::tensor(index));
  is_last_new_ = true;
  return index;
}

void LiveState::append_value(Path path, Value value) {
  std::string name = dotted(path);
  append_entry({std::move(name), std::move(path), std::move(value)});
}

void LiveState::append_entry(StateEntry entry) {
  contents_.dict.entries.push_back(std::move(entry));
  is_last_new_ = false;
  if (!std::exchange(has_structure_, false)) return;  // until all of it is there
  has_structure_ = append_structure(contents_, contents_.dict.entries.back(), structure_);
}

std::uint32_t LiveState::add_tensor(const Path& path, LiveTensor tensor) {
  check_new(dotted(path));
  return append_tensor(path, std::move(tensor));
}

std::uint32_t LiveState::add(const Path& path, const TensorView& view) {
  LiveTensor tensor;
  tensor.spec = {view.dtype, Shape(view.shape)};
  tensor.pieces.push_back(
      {Chunk::whole_of(Box::whole(tensor.spec.shape)), view.data, view.strides});
  tensor.replicated = true;
  return add_tensor(path, std::move(tensor));
}

std::uint32_t LiveState::add(const std::string& name, const TensorView& view) {
  return add(Path{key_item(name)}, view);
}

std::uint32_t LiveState::add_piece(const std::string& name, const TensorSpec& spec,
                                   LivePiece piece) {
  return add_piece(Path{key_item(name)}, spec, std::move(piece));
}

std::uint32_t LiveState::add_piece(const Path& path, const TensorSpec& spec, LivePiece piece) {
  const std::string name = dotted(path);
  const StateEntry* entry = find_entry(name);
  if (entry == nullptr) {
    LiveTensor tensor;
    tensor.spec = spec;
    tensor.pieces.push_back(std::move(piece));
    return append_tensor(path, std::move(tensor));
  }
  if (!entry->value.is_tensor() || entry->value.tensor_index() >= contents_.tensors.size() ||
      contents_.tensors[entry->value.tensor_index()].spec != spec)
    fail(Code::kInvalidArgument, fmt::format("\"{}\" is in the state already, and is no {}",
                                             printable(name), spec.to_string()));
  const std::uint32_t index = entry->value.tensor_index();
  contents_.tensors[index].pieces.push_back(std::move(piece));
  const bool is_last = is_last_new_ && entry == &contents_.dict.entries.back();
  if (std::exchange(has_structure_, false) && is_last) {
    append_piece_structure(contents_.tensors[index].pieces.back(), structure_);
    has_structure_ = true;
  }
  return index;
}

void LiveState::add_value(const Path& path, Value value, ValueScope scope) {
  const std::string name = dotted(path);
  check_new(name);
  if (scope == ValueScope::kPerRank) contents_.per_rank.insert(name);
  append_value(path, std::move(value));
}

void LiveState::add_value(const std::string& name, Value value, ValueScope scope) {
  add_value(Path{key_item(name)}, std::move(value), scope);
}

std::uint64_t LiveState::bytes() const {
  std::uint64_t total = 0;
  for (const LiveTensor& tensor : contents_.tensors) {
    for (const LivePiece& piece : tensor.pieces)
      total += byte_size(piece.chunk.numel(), tensor.spec.dtype);
  }
  return total;
}

void check_live_tensors(const LiveState& state, bool writable) {
  for (const StateEntry& entry : state.dict().entries) {
    if (!entry.value.is_tensor()) continue;
    in_tensor(entry.name, [&] {
      const std::uint32_t index = entry.value.tensor_index();
      if (index >= state.tensors().size())
        fail(Code::kInvalidArgument, fmt::format("the state has no tensor number {}", index));
      const LiveTensor& tensor = state.tensors()[index];
      check_spec(tensor.spec);
      for (const LivePiece& piece : tensor.pieces) check_piece(tensor.spec, piece, writable);
    });
  }
}

}  // namespace tessera
