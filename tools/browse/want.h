#pragma once
// What the browser asks of the checkpoint, and what comes back. The browser itself reads nothing: a
// worker does, one want after the other, and may be stopped.
#include <tessera/ops/diff.h>
#include <tessera/ops/optim.h>
#include <tessera/ops/show.h>
#include <tessera/ops/stat.h>
#include <tessera/ops/summary.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tools {

enum class Need : std::uint8_t {
  kFacts,      // type, shape, pieces: no tensor byte
  kNumbers,    // statistics and histograms
  kValues,     // a window of elements
  kOptimizer,  // the state of the parameter, with numbers
  kCompare,    // elements of both sides
  kSummary,    // of the whole, with its values
};

/// A part of a tensor, which is seen as planes of rows and columns.
struct ValueWindow {
  std::int64_t plane = 0, row = 0, rows = 0, column = 0, columns = 0;
  bool operator==(const ValueWindow&) const = default;
};

struct Want {
  Need what = Need::kFacts;
  std::uint32_t item = 0;  // of BrowseList::items
  ValueWindow window = {};
  std::vector<std::uint32_t> items = {};  // kCompare
  bool with_numbers = true;               // kOptimizer: values may be read
};

/// One piece of a parameter's state, or its weight.
struct StatePiece {
  std::string role;                  // "weight", "exp_avg"
  std::string name;                  // of the tensor; "" of a plain value
  std::string form;                  // "float32 [8, 3]", or the value
  std::optional<TensorStat> number;  // where it was read
};
struct OptimizerOfTensor {
  std::string fqn, root, kind, dialect;
  std::int64_t group = -1;
  std::vector<std::pair<std::string, std::string>> options;  // of the group
  std::vector<StatePiece> pieces;
  std::optional<UpdateRow> update;
  std::string update_note;
};

struct SummaryOfSide {
  SummaryReport summary;
  std::vector<std::pair<std::string, Value>> values;  // JSON form
};

/// By side: A, B.
template <class T>
using BothSides = std::array<std::optional<T>, 2>;

struct Answer {
  Want want;
  std::string failure;   // why there is nothing; "" otherwise
  bool stopped = false;  // on request
  BothSides<ShowReport> shown;
  BothSides<StatReport> numbers;
  BothSides<OptimizerOfTensor> optimizer;
  BothSides<SummaryOfSide> summaries;
  DiffReport difference;
};

}  // namespace tessera::tools
