#pragma once
// The page of `ckpt-inspect audit --html` (share/report/audit.js), made as report's is: its data is the
// document of the audit.
#include <tessera/ops/audit.h>

#include <cstddef>

#include "tools/sink.h"

namespace tessera::tools {

/// Numbers of layers that the page has: some 9 bytes each. Of more, the first layers are shown, and
/// the page says so.
inline constexpr std::size_t kPageNumbers = std::size_t{1} << 19;

void write_audit_page(const AuditReport& report, const Sink& sink);

}  // namespace tessera::tools
