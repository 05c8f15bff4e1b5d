#pragma once
// Parameter edits: one or several parameters of a model become others: fused, split, padded,
// truncated or left out. Everything that a checkpoint holds of a parameter follows:
//
//   weights               under every model root that has them, and in every copy of the model
//                         (averaged weights)
//   optimizer state       tensors of the parameter's shape, by the same pieces; counters (0-dim,
//                         one element, plain values) are one for all: those of fused parameters
//                         must be equal
//   groups                members by FQN or id, options kept per FQN; ids are numbered anew
//
// State that cannot be cut with its parameter (LeafCut: factored, in blocks, of a basis; objects with
// tensors inside) follows only where one parameter stays as it is. Else it is refused, or all state
// of that parameter is left out (OptimPolicy::kDrop): its optimizer begins anew there.
// Pure but for the manifest given and `same`; tensors must be located (state/manifest_edit.h).
#include <tessera/state/manifest_edit.h>

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace tessera {

struct OldParameter {
  std::string fqn;
  Shape shape;
};

struct NewParameter {
  std::string fqn;
  Shape shape;
  /// TensorPiece::source is an index in ParameterEdit::olds, or kNoTensor.
  std::vector<TensorPiece> pieces;
};

/// `olds` are replaced by `made` (possibly none).
struct ParameterEdit {
  std::vector<OldParameter> olds;
  std::vector<NewParameter> made;
};

/// True when two tensors hold the same bytes; only asked for tensors of one element.
using SameTensors = std::function<bool(std::uint32_t, std::uint32_t)>;

/// Shapes by FQN: of the model's tensors, else (no model here) of optimizer state.
std::map<std::string, Shape> parameter_shapes(const Manifest& manifest);

/// What becomes of optimizer state that cannot follow its parameter.
enum class OptimPolicy : std::uint8_t { kKeep, kDrop };

/// Applies all edits. An FQN may be old in one edit only. The notes name state that was left out.
/// Throws kInvalidArgument (parts of a fused parameter are missing under some root or lie in
/// different groups, counters differ, names collide), kUnsupported (state that cannot follow, unless
/// it is dropped), naming the parameter.
std::vector<Note> edit_parameters(Manifest& manifest, std::span<const ParameterEdit> edits,
                                  const SameTensors& same, OptimPolicy policy = OptimPolicy::kKeep);

}  // namespace tessera
