#pragma once
// A run in memory: its checkpoints in order, in series, and the findings so far.
#include <tessera/ops/audit.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "lib/ops/audit/facts.h"

namespace tessera {

struct AuditRun {
  std::string path;
  AuditNames names;
  std::vector<CheckpointFacts> checkpoints;      // by series, then step
  std::vector<std::vector<std::size_t>> series;  // indices, in order; two steps are never equal
  std::string pointer, pointer_target;
  bool has_pointer = false, pointer_leads = false;
  std::vector<Note> findings;
  std::vector<Note> notes;

  const AuditedCheckpoint& row(std::size_t i) const { return checkpoints[i].row; }
  /// `file`: the checkpoint's name.
  void add(Finding code, Severity severity, std::string message, std::string file = {},
           std::string tensor = {}) {
    findings.push_back({code, severity, std::move(message), std::move(file), std::move(tensor)});
  }
};

/// Opens every checkpoint below `path` and puts them in order.
void open_run(FileSystem& fs, const std::string& path, const AuditOptions& options, AuditRun& run);

/// "step 300", or the name of what has none.
std::string step_text(const AuditedCheckpoint& row);

// Each adds its findings.
/// Damage, the pointer, missing parts: AU002-AU006.
void check_wholeness(AuditRun& run);
/// AU011-AU013.
void check_steps_over_time(AuditRun& run);
/// AU020-AU022.
void check_optimizers(AuditRun& run);
/// Content that did not change, ties: AU010, AU060, AU061. `share`: "" or what part was read.
void check_content(AuditRun& run, const std::string& share);
/// Rows' soundness, AU001, AU070, AU071; after all others.
void check_retention(FileSystem& fs, AuditRun& run, std::uint32_t keep, AuditReport& report);

}  // namespace tessera
