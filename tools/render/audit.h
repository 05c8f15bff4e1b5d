#pragma once
// audit and trend as people read them. Pure; names are made printable.
#include <tessera/ops/audit.h>

#include <string>

#include "tools/render/screen.h"

namespace tessera::tools {

std::string render_audit(const AuditReport& report, const Screen& screen);
/// A line for each tensor; one tensor alone as a picture.
std::string render_trend(const TrendReport& report, const Screen& screen);

}  // namespace tessera::tools
