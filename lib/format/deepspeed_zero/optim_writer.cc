#include "lib/format/deepspeed_zero/optim_writer.h"

namespace tessera::deepspeed {

Value scalar_value(ArchiveDraft& builder, const GroupedLeaf& leaf) {
  const Value& value = leaf.value;
  if (value.is_tensor()) return builder.whole(value.tensor_index());
  if (leaf.name == kStep && value.kind() == Value::Kind::kFloat)
    return builder.float_scalar(value.as_real());
  return builder.take(value);
}

Value param_groups(ArchiveDraft& builder, const SourceState& state, const Target& target) {
  std::vector<ValueList> ids(state.groups.size());
  std::vector<OptimizerGroup> of_buffers;
  if (target.pipeline_stages > 0) {  // a stage has the groups that it trains something of
    ids.clear();
    for (std::size_t b = 0; b < target.buffers.size(); ++b) {
      of_buffers.push_back(state.optimizer.groups()[target.buffers[b].group]);
      ids.push_back({Value::integer(static_cast<std::int64_t>(b))});
    }
    return param_groups_value(of_buffers, std::move(ids),
                              [&](const Value& value) { return builder.take(value); });
  }
  for (std::size_t b = 0; b < target.buffers.size(); ++b)
    ids[target.buffers[b].group].push_back(Value::integer(static_cast<std::int64_t>(b)));
  return param_groups_value(state.optimizer.groups(), std::move(ids),
                            [&](const Value& value) { return builder.take(value); });
}

void add_globals(ArchiveDraft& builder, const SourceState& state, ValueDict& out) {
  for (const auto& [key, value] : state.globals.as_dict()) {
    const std::string_view name =
        key.is_string() ? std::string_view(key.as_string()) : std::string_view();
    if (name == kBufferNames) continue;
    out.emplace_back(
        key, name == kLossScaler ? scaler_object(builder.take(value)) : builder.take(value));
  }
}

}  // namespace tessera::deepspeed
