#pragma once
// From every rank's description of its live state to one checkpoint's: which entries there are,
// which rank stores which part of them, and the proof that the parts make up every tensor.
//
//   LiveState --describe--> structure (names, types, boxes) and values, as bytes
//     --all gather--> merge_states: the same answer on every rank, or the same error, naming tensor
//                     and ranks
//
// Pure, but for what is read of this rank's own state.
#include <tessera/format/format_driver.h>
#include <tessera/state/live_state.h>
#include <tessera/state/manifest.h>
#include <tessera/storage/checksum.h>

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// A rank's message about its live state, taken apart: views into it, since a large job's messages
/// are large together.
struct LiveDescription {
  /// Throws kCorrupt.
  explicit LiveDescription(ByteView message);
  ByteView structure;  // all but the content of values
  ByteView values;     // of shared values a digest and a short text; of a rank's own the whole
  ByteView agreed;     // what ranks must agree on besides
};

/// The result of the state's `agreed`, as bytes. `thrown`: what it threw, unless that was an Error.
Bytes agreements_of(const LiveState& state, std::exception_ptr& thrown);
/// The message of `state`, which has this structure and these agreements. Throws kUnsupported for a
/// value that cannot be sent to other ranks or has a tensor inside. Precondition: check_names(),
/// digest_of_shared().
Bytes describe(const LiveState& state, ByteView structure, ByteView agreed);
/// Over what ranks must agree on: all shared values among `values`, which are those of `state`, and
/// `agreed`. Throws as describe(), and kInvalidArgument for any value that no load could read.
Sha256Digest digest_of_shared(const LiveState& state, const StateDict& values, ByteView agreed);
/// Throws kInvalidArgument for two entries of one name, and for a name that no load could read.
void check_names(const LiveState& state);

/// A piece of this rank's memory that this rank stores.
struct OwnPiece {
  std::uint64_t chunk = 0;  // in MergedState::manifest.chunks
  std::uint32_t entry = 0;  // in this rank's LiveState::dict()
  std::uint32_t piece = 0;
  std::uint32_t place = 0;  // in LiveStructure::memory
};

/// A value that this rank knows: a shared one or its own.
struct KnownValue {
  std::uint32_t entry = 0;   // in this rank's LiveState::dict()
  std::uint32_t merged = 0;  // in MergedState::manifest.state
};

struct MergedState {
  Manifest manifest;  // chunks: those that are stored, of kind kMemory
  StoredParts parts;  // in the order in which they are stored
  std::vector<OwnPiece> own;
  std::vector<OwnPiece> strided;  // those of them that are not dense
  std::vector<KnownValue> values;
  std::vector<std::string> sharded;  // tensors stored in more than one piece
};

/// `all[r]`: of rank r. `mine`: this rank's state. Throws kInvalidArgument.
MergedState merge_states(std::span<const LiveDescription> all, int rank, const LiveState& mine);

/// Points the sources of this rank's pieces at the memory of `state`, which has the structure that
/// was merged; `memory`: LiveStructure::memory of it. Sources of dense pieces keep their lengths.
/// Precondition: nobody reads the manifest.
void bind_sources(MergedState& merged, const LiveState& state, std::span<void* const> memory);

/// Name under which rank `rank` keeps its own value of that name: "rng.rank_3".
std::string rank_value_name(const std::string& name, int rank);

/// One line of at most 60 characters, for messages.
std::string short_text(const Value& value);

}  // namespace tessera
