#pragma once
// The flat parameters of flat units, as LOCAL state dicts name them: `<unit>._flat_param`, one per
// dtype and requires_grad, 1-D, without the padding at its end.
//
//   |  a  |  b  |gap|  c  |      elements of the flat parameter; gaps where parameters are aligned
//   | rank 0   |  rank 1  |pad|
#include <string>
#include <utility>

#include "fsdp_core/bridge/live_memory.h"
#include "fsdp_core/state_dict/model_tensors.h"

namespace tessera::fsdp {

/// The name that the flat parameter of `tensor`'s unit has in a state dict.
std::string flat_name(const ModelTensors& model, const ModelTensor& tensor);
/// Its elements without padding.
std::int64_t flat_numel(const ParamGroup& group);
/// Elements [begin, end) of it that this rank holds, without padding.
std::pair<std::int64_t, std::int64_t> flat_range(const ParamGroup& group);
/// What this rank holds of parameter `p`, as elements of the flat parameter.
std::pair<std::int64_t, std::int64_t> flat_range(const ParamGroup& group, std::size_t p);

/// This rank's part, borrowed.
LiveTensor flat_parameter(LiveMemory& memory, const ModelTensor& tensor, const std::string& name);

/// A flat tensor of which `add` gives the parts, parameter by parameter; what lies between them is
/// zeros of its own.
class FlatPieces {
 public:
  FlatPieces(LiveMemory& memory, const ModelTensor& any, std::string name, at::ScalarType dtype);
  void add(std::size_t p, const at::Tensor& part);
  LiveTensor finish() &&;

 private:
  void append(const at::Tensor& part, std::int64_t begin, std::int64_t end);

  LiveMemory& memory_;
  const ParamGroup& group_;
  std::string name_;
  LiveTensor out_;
  std::shared_ptr<std::vector<std::shared_ptr<const void>>> owned_ =
      std::make_shared<std::vector<std::shared_ptr<const void>>>();
};

}  // namespace tessera::fsdp
