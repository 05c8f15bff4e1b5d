#pragma once
// LiveState: a training job's state as one rank sees it: what save() writes and load() fills.
//
//   dict     names -> tensor references (Value::tensor(i): i in `tensors`) and plain values
//   tensors  per tensor: its global type and shape, and the pieces of it that lie in this rank's
//            memory
//
// Every rank of the group makes its own. Names, types and global shapes must agree where ranks name
// the same tensor; a rank may leave out tensors of which it holds nothing. Together the pieces must
// cover every tensor: each element once, or, in tensors marked `replicated`, in equal pieces on
// several ranks (one of them is written, all are filled).
//
//   std::vector<float> weight(8 * 3), bias(3);                    // memory of the job
//   tessera::LiveState state;
//   state.add("bias", {tessera::DType::kFloat32, {3}, {}, bias.data()});   // all of it, everywhere
//   state.add_piece("weight", {tessera::DType::kFloat32, {8 * world, 3}},  // rows of this rank
//                   {tessera::Chunk::whole_of({{8 * rank, 0}, {8, 3}}), weight.data(), {}});
//   state.add_value("epoch", tessera::Value::integer(3));
//   state.add_value("rng", my_generator_state, tessera::ValueScope::kPerRank);
//   tessera::save("run/step_100", state, ranks);
//   state.on_value = [&](const tessera::StateEntry& stored) { ... };       // values come back here
//   tessera::LoadResult result = tessera::load("run/step_100", state, ranks);
//
// A runtime that has a whole tree hands it over at once; names then follow DCP's own rule:
//
//   tessera::Value tree = Value::dict({{Value::string("model"), Value::dict({...tensor(0)...})},
//                                      {Value::string("optim"), ...}});
//   tessera::LiveState state = tessera::LiveState::of(tree, std::move(tensors));
//
// What is there already is changed by edit(). A state keeps its own structure (names, types, boxes)
// as bytes, so that a save knows from one comparison whether it was planned before.
//
// Memory is borrowed; `owner` of a tensor may keep it alive. A LiveState is a value; the callbacks
// are called on the thread that called save() or load(), in the order listed. What one throws on
// one rank, every rank throws: an Error of ours as it is, all else as one that names the callback
// (CallbackError). Thread-safe to read.
#include <tessera/base/error.h>
#include <tessera/state/manifest.h>
#include <tessera/state/value.h>
#include <tessera/tensor/chunk.h>
#include <tessera/tensor/shape.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera {

/// Part of a tensor in this rank's memory.
struct LivePiece {
  Chunk chunk;           // of the global tensor
  void* data = nullptr;  // its first element; may be null when the chunk is empty
  /// Elements per dim of chunk.box, each >= 0 (> 0 to load, where the extent is more than one);
  /// empty: dense, row-major. A chunk that is only a range of its box's ravel is always dense.
  std::vector<std::int64_t> strides;
};

struct LiveTensor {
  TensorSpec spec;  // of the whole, over all ranks
  std::vector<LivePiece> pieces;
  bool replicated = false;  // other ranks may hold equal pieces with equal content
  bool is_parameter = false;
  /// May change between save_async() and finish_snapshot() without state.changed reporting it (a
  /// buffer that a forward updates): a lazy snapshot copies it before the call returns.
  bool copied_at_once = false;
  /// Memory of this state's own callbacks, not of the job: a load fills it before it asks
  /// check_loaded, all else after.
  bool scratch = false;
  /// Only this state's callbacks change it, and `owner` keeps it: a save in the background writes from
  /// it, where others are copied first.
  bool written_in_place = false;
  /// Kept until the call is over, in the background too; may be null.
  std::shared_ptr<const void> owner;
};

/// A whole array in memory, as NumPy and PyTorch describe one. Strides in elements; empty: dense.
struct TensorView {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  void* data = nullptr;
};

/// A value that must be equal on every rank that states it, though it is not stored in this form
/// (the step that an optimizer counts). Ranks send it with their description of a save, at no
/// further cost.
struct Agreement {
  std::string name;   // as messages show it
  std::string value;  // equal texts agree
  std::string hint;   // what to do where they differ
};

enum class ValueScope : std::uint8_t {
  kShared,   // one value, equal on all ranks: differing ones are an error naming both
  kPerRank,  // every rank has its own, stored as `<name>.rank_<r>`
};

/// What a LiveState is made of.
struct LiveContents {
  StateDict dict;                   // names are unique
  std::vector<LiveTensor> tensors;  // Value::tensor(i) in `dict` means tensors[i]
  std::set<std::string> per_rank;   // names of values of scope kPerRank
};

/// What a save has to know of a LiveState's entries but for the values themselves: it need not look
/// at the tensors then. (Callbacks, owners and `scratch` are not in it, nor StateDict::containers.)
struct LiveStructure {
  std::vector<std::byte> bytes;  // names, types, boxes, strides: lib/state/live/live_structure.h
  std::vector<void*> memory;     // of one entry's pieces after the other's
};

struct LiveState {
  /// Before save() looks at tensors(): brings up to date what the pieces point at (a staging copy
  /// of device memory).
  std::function<void()> before_save;
  /// With a lazy snapshot, in place of before_save where it is set: begins the same, and returns what
  /// waits for its end. That is called once, by another thread, before the memory is read; what it throws
  /// fails the save.
  std::function<std::function<void()>()> before_lazy_save;
  /// After before_save: what save() compares between ranks before it writes anything.
  std::function<std::vector<Agreement>()> agreed;
  /// For a snapshot that is taken while training goes on (SnapshotTiming::kLazy): the name of a
  /// tensor whose memory has changed since before_save (before_lazy_save) was called, or this state was
  /// made; "": none. Cheap, and called from other threads too.
  std::function<std::string()> changed;
  /// Once load() has read what is stored (names, types and shapes; `stored.state`): creates state
  /// that does not exist yet (an optimizer before its first step), and adds its tensors.
  std::function<void(LiveState& state, const Manifest& stored)> materialise;
  /// Before the first byte lands, for every value that this state asks for and that was found, by
  /// its name in `dict`: throws for what will not fit.
  std::function<void(const StateEntry& stored)> check_value;
  /// Once every rank has read what it reads before it changes anything but scratch memory: throws
  /// for tensors that do not go together. May talk to other ranks. Names that are loaded.
  std::function<void(const std::vector<std::string>& loaded)> check_loaded;
  /// After every tensor is filled, for the same values.
  std::function<void(const StateEntry& stored)> on_value;
  /// Last, when all ranks are done: names of the tensors that were filled (a policy may have left
  /// out others).
  std::function<void(const std::vector<std::string>& loaded)> after_load;
  std::vector<Note> notes;  // what materialise says of a load, for LoadResult::notes

  /// The tree's leaves, named by DCP's rule (flatten() in state/value.h): `tensors` are what its
  /// tensor references mean. Throws kCorrupt when two leaves get one name.
  static LiveState of(const Value& tree, std::vector<LiveTensor> tensors);

  /// A tensor that every rank holds whole. Returns its index. `name` is one key of the top dict; a
  /// path enters dicts. Throws kInvalidArgument for a name that is taken.
  std::uint32_t add(const std::string& name, const TensorView& view);
  std::uint32_t add(const Path& path, const TensorView& view);
  /// A piece of a tensor that no other rank holds. More pieces of the same name may follow, best
  /// before other entries do (structure()); `spec` must then be the same.
  std::uint32_t add_piece(const std::string& name, const TensorSpec& spec, LivePiece piece);
  std::uint32_t add_piece(const Path& path, const TensorSpec& spec, LivePiece piece);
  /// Any tensor.
  std::uint32_t add_tensor(const Path& path, LiveTensor tensor);
  void add_value(const std::string& name, Value value, ValueScope scope = ValueScope::kShared);
  void add_value(const Path& path, Value value, ValueScope scope = ValueScope::kShared);

  /// The same for names that are known to be new, which then are not looked for; one that is taken
  /// is found by save().
  std::uint32_t append_tensor(Path path, LiveTensor tensor);
  void append_value(Path path, Value value);
  void append_entry(StateEntry entry);  // that may have another name than its path's

  /// Any other change. All of the structure is made again: make changes in one call, and tensors
  /// with flags by add_tensor().
  void edit(const std::function<void(LiveContents& contents)>& change);
  /// Takes out entries, and tensors that nothing means any more: the numbers of others change.
  /// `is_gone` leaves this state alone.
  void remove_if(const std::function<bool(const StateEntry& entry)>& is_gone);

  const StateDict& dict() const { return contents_.dict; }
  const std::vector<LiveTensor>& tensors() const { return contents_.tensors; }
  const std::set<std::string>& per_rank() const { return contents_.per_rank; }
  const LiveContents& contents() const { return contents_; }

  /// Bytes of this rank's pieces.
  std::uint64_t bytes() const;
  /// nullptr: an entry means a tensor that is not there; or a tensor got pieces after other entries
  /// had come, until edit(): then each save makes it for itself.
  const LiveStructure* structure() const { return has_structure_ ? &structure_ : nullptr; }

 private:
  /// The entry of that name, or nullptr.
  const StateEntry* find_entry(const std::string& name);
  /// Throws kInvalidArgument.
  void check_new(const std::string& name);

  LiveContents contents_;
  /// Indices of the first entries by the hash of their names, as many as it has: adding many does
  /// not search all of them.
  std::unordered_multimap<std::size_t, std::size_t> index_;
  LiveStructure structure_;
  bool has_structure_ = true;
  bool is_last_new_ = false;  // the last entry's tensor was added with it: no other entry means it
};

/// What load(), save() and save_async() throw on the rank whose callback threw something that is no
/// Error: an Error that names the callback and says what it said, and that holds it.
/// std::rethrow_if_nested(error) throws it again. Other ranks get the Error alone.
class CallbackError : public Error, public std::nested_exception {
 public:
  explicit CallbackError(Status status) : Error(std::move(status)) {}
};

/// Throws kInvalidArgument, naming the tensor, for a type that is none, pieces outside their
/// tensor, null memory, strides that do not fit or reach past the end of memory; kUnsupported for a
/// quantized type or a part of a sub-byte one. `writable`: they are going to be filled, so that no
/// two elements may share memory.
void check_live_tensors(const LiveState& state, bool writable);

}  // namespace tessera
