#pragma once
// JSON documents of audit and trend (docs/json/audit.schema.json, trend.schema.json). Pure.
#include <tessera/ops/audit.h>
#include <tessera/state/value.h>

#include <string_view>

namespace tessera::tools {

Value audit_document(const AuditReport& report);
/// A point for each tensor and checkpoint that has the number.
Value trend_document(const TrendReport& report);

/// "norm", "v_max", "update"
std::string_view trend_name(TrendOf of);

}  // namespace tessera::tools
