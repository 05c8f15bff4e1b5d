#include "lib/format/deepspeed_zero/target.h"

#include <tessera/format/deepspeed_zero.h>

namespace tessera::deepspeed {
namespace {

bool is_enabled(const Value& fields, std::string_view key) {
  const Value* config = fields.find(kDsConfig);
  const Value* part = config ? config->find(key) : nullptr;
  const Value* enabled = part ? part->find("enabled") : nullptr;
  return enabled && enabled->kind() == Value::Kind::kBool && enabled->as_bool();
}

}  // namespace

int target_stage(const Manifest& source, const TargetRequest& request) {
  if (const auto stage = request.own.get(kZeroStageFlag); stage > 0) return static_cast<int>(stage);
  const auto stage = source.provenance.find(std::string(kStageProvenance));
  if (stage == source.provenance.end()) return 2;
  return stage->second == "1" ? 1 : stage->second == "3" ? 3 : 2;
}

bool target_is_bf16(const Manifest& source, const SourceState& state) {
  const auto prefix = source.provenance.find(std::string(kBf16Provenance));
  return prefix != source.provenance.end() ? prefix->second == "true"
                                           : is_enabled(state.fields, "bf16");
}

}  // namespace tessera::deepspeed
