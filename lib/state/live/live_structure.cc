#include "lib/state/live/live_structure.h"

#include <tessera/base/error.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace tessera {

namespace {

// An entry's kind, and whether its name is its path's, are one number.
constexpr std::uint64_t kKindMask = 3, kNamedAsPath = 4;

constexpr std::size_t kEntryBytes = 80;  // of a usual one: only saves growing

// A tensor's type and its flags are one number.
constexpr std::uint64_t kDTypeMask = 0xff, kReplicated = 0x100, kIsParameter = 0x200,
                        kOfFirstRank = 0x400;

// What stands before a piece. Elements without memory are refused by every save: no state that was
// saved has the structure of one with such a piece.
constexpr std::uint64_t kNoMorePieces = 0, kPiece = 1, kPieceWithoutMemory = 2;

StructureEntry::Kind kind_of(const LiveContents& contents, const StateEntry& entry) {
  if (entry.value.is_tensor()) return StructureEntry::Kind::kTensor;
  return contents.per_rank.contains(entry.name) ? StructureEntry::Kind::kPerRank
                                                : StructureEntry::Kind::kShared;
}

/// entry.name == dotted(entry.path), for paths of keys alone, as most are.
bool is_named_as_path(const StateEntry& entry) {
  std::string_view rest = entry.name;
  for (const PathItem& item : entry.path) {
    if (item.kind != PathItem::Kind::kKey || !rest.starts_with(item.key)) return false;
    rest.remove_prefix(item.key.size());
    if (&item == &entry.path.back()) return rest.empty();
    if (!rest.starts_with('.')) return false;
    rest.remove_prefix(1);
  }
  return false;
}

void append_piece(const LivePiece& piece, WireWriter& wire, std::vector<void*>& memory) {
  const bool no_memory = piece.data == nullptr && piece.chunk.numel() != 0;
  wire.number(no_memory ? kPieceWithoutMemory : kPiece).chunk(piece.chunk).integers(piece.strides);
  memory.push_back(piece.data);
}

void append_tensor(const LiveTensor& tensor, WireWriter& wire, std::vector<void*>& memory) {
  const std::uint64_t flags = (tensor.replicated ? kReplicated : 0) |
                              (tensor.is_parameter ? kIsParameter : 0) |
                              (tensor.copied_at_once ? kOfFirstRank : 0);
  wire.number(static_cast<std::uint64_t>(tensor.spec.dtype) | flags)
      .integers(tensor.spec.shape.extents());
  for (const LivePiece& piece : tensor.pieces) append_piece(piece, wire, memory);
  wire.number(kNoMorePieces);
}

void read_tensor(WireReader& in, StructureEntry& entry) {
  const std::uint64_t head = in.number();
  if ((head & kDTypeMask) >= all_dtypes().size())
    fail(Code::kCorrupt, "a message from another rank has an unknown element type");
  entry.spec.dtype = static_cast<DType>(head & kDTypeMask);
  entry.replicated = (head & kReplicated) != 0;
  entry.is_parameter = (head & kIsParameter) != 0;
  entry.of_first_rank = (head & kOfFirstRank) != 0;
  entry.spec.shape = Shape::checked(in.integers());
  while (in.number() != kNoMorePieces) {
    entry.chunks.push_back(in.chunk());
    in.integers();  // its strides are its rank's own affair
  }
}

}  // namespace

bool append_structure(const LiveContents& contents, const StateEntry& entry, LiveStructure& out) {
  const StructureEntry::Kind kind = kind_of(contents, entry);
  const bool is_tensor = kind == StructureEntry::Kind::kTensor;
  if (is_tensor && entry.value.tensor_index() >= contents.tensors.size()) return false;
  const bool as_path = is_named_as_path(entry);
  WireWriter wire(std::move(out.bytes));
  wire.number(static_cast<std::uint64_t>(kind) | (as_path ? kNamedAsPath : 0)).path(entry.path);
  if (!as_path) wire.text(entry.name);
  if (is_tensor) append_tensor(contents.tensors[entry.value.tensor_index()], wire, out.memory);
  out.bytes = wire.finish();
  return true;
}

void append_piece_structure(const LivePiece& piece, LiveStructure& out) {
  WireWriter wire(std::move(out.bytes));
  wire.cut(wire.written().size() - 1);  // kNoMorePieces
  append_piece(piece, wire, out.memory);
  wire.number(kNoMorePieces);
  out.bytes = wire.finish();
}

bool append_structure(const LiveContents& contents, LiveStructure& out) {
  out.bytes.reserve(contents.dict.entries.size() * kEntryBytes);
  out.memory.reserve(contents.tensors.size());
  return std::ranges::all_of(contents.dict.entries, [&](const StateEntry& entry) {
    return append_structure(contents, entry, out);
  });
}

std::uint64_t byte_size(std::int64_t elements, DType dtype) {
  const auto width = static_cast<std::uint64_t>(bits(dtype));
  return (static_cast<std::uint64_t>(elements) * width + 7) / 8;
}

const LiveStructure* structure_of(const LiveState& state, LiveStructure& anew) {
  if (state.structure() != nullptr) return state.structure();
  return append_structure(state.contents(), anew) ? &anew : nullptr;
}

StructureEntry read_structure_entry(WireReader& in) {
  StructureEntry entry;
  const std::uint64_t named = in.number();
  if ((named & kKindMask) > static_cast<std::uint64_t>(StructureEntry::Kind::kPerRank))
    fail(Code::kCorrupt, "a message from another rank has an unknown kind of entry");
  entry.kind = static_cast<StructureEntry::Kind>(named & kKindMask);
  entry.path = in.path();
  entry.name = (named & kNamedAsPath) != 0 ? dotted(entry.path) : in.text();
  if (entry.kind == StructureEntry::Kind::kTensor) read_tensor(in, entry);
  return entry;
}

}  // namespace tessera
