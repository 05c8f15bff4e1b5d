#include "tools/browse/reader.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/state/roles.h>
#include <tessera/state/state_values.h>
#include <tessera/tensor/dtype.h>

#include <algorithm>
#include <map>

#include "tools/browse/value_grid.h"
#include "tools/render/number_text.h"
#include "tools/render/render.h"

namespace tessera::tools {
namespace {

/// As many columns as a histogram may take on a screen.
constexpr int kBins = 64;

/// "2.0" of a step that is a plain value.
std::string plain_text_of(const Value& value) {
  return value.is_tensor() ? std::string() : value_text(value);
}

}  // namespace

BrowseReader::BrowseReader(std::vector<OpenedCheckpoint> sides, std::vector<BrowseItem> items,
                           TransferOptions limits)
    : items_(std::move(items)), limits_(limits) {
  for (OpenedCheckpoint& side : sides) {
    sides_.emplace_back();
    sides_.back().checkpoint = std::move(side);
  }
}

Answer BrowseReader::answer(const Want& want, const CancelToken* cancel, Progress* progress) {
  Answer answer;
  answer.want = want;
  TransferOptions transfer = limits_;
  transfer.cancel = cancel;
  transfer.progress = progress;
  try {
    fill(answer, transfer);
  } catch (...) {
    const Status status = current_exception_status();
    answer.stopped = status.code == Code::kCancelled;
    answer.failure = status.message;
    if (!status.context.file.empty()) answer.failure += fmt::format(" [{}]", status.context.file);
  }
  return answer;
}

void BrowseReader::fill(Answer& answer, const TransferOptions& transfer) {
  const Want& want = answer.want;
  if (want.what == Need::kCompare) {
    DiffOptions options;
    options.transfer = transfer;
    options.canonical_optim = false;
    for (const std::uint32_t item : want.items)
      options.names.emplace_back(items_[item].name.view());
    std::ranges::sort(options.names);
    answer.difference = diff_checkpoints(sides_[0].checkpoint, sides_[1].checkpoint, options);
    return;
  }
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    if (want.what == Need::kSummary) {
      answer.summaries[i] = SummaryOfSide{summarize(sides_[i].checkpoint),
                                          json_values(sides_[i].checkpoint, transfer)};
      continue;
    }
    const std::uint32_t tensor = items_[want.item].tensor[i];
    if (tensor == BrowseItem::kAbsent) continue;
    if (want.what == Need::kFacts) answer.shown[i] = show_of(sides_[i], want, transfer);
    if (want.what == Need::kNumbers) answer.numbers[i] = stat_of(sides_[i], {tensor}, transfer);
    if (want.what == Need::kOptimizer)
      answer.optimizer[i] = optimizer_of(sides_[i], tensor, want.with_numbers, transfer);
    // A window of A's shape says nothing of another.
    const std::uint32_t first = items_[want.item].tensor[0];
    const bool fits = i == 0 || first == BrowseItem::kAbsent ||
                      sides_[0].checkpoint.manifest.tensors[first].spec.shape ==
                          sides_[1].checkpoint.manifest.tensors[tensor].spec.shape;
    if (want.what == Need::kValues && fits) answer.shown[i] = show_of(sides_[i], want, transfer);
  }
}

ShowReport BrowseReader::show_of(Side& side, const Want& want, const TransferOptions& transfer) {
  ShowOptions options;
  options.transfer = transfer;
  options.values = want.what == Need::kValues;
  options.facts = !options.values;
  const BrowseItem& item = items_[want.item];
  if (options.values) {
    const std::uint32_t tensor = item.tensor[&side == sides_.data() ? 0 : 1];
    const Shape& shape = side.checkpoint.manifest.tensors[tensor].spec.shape;
    options.slice = slice_of(shape.extents(), want.window);
  }
  return show(side.checkpoint, std::string(item.name.view()), options);
}

StatReport BrowseReader::stat_of(Side& side, std::vector<std::uint32_t> tensors,
                                 const TransferOptions& transfer) {
  StatOptions options;
  options.transfer = transfer;
  options.bins = kBins;
  options.histograms_up_to = tensors.size();
  options.both_histograms = true;
  std::ranges::sort(tensors);
  options.tensors = std::move(tensors);
  return stat_checkpoint(side.checkpoint, options);
}

void BrowseReader::look_for_optimizers(Side& side) {
  if (side.looked) return;
  side.looked = true;
  Manifest& manifest = side.checkpoint.manifest;
  expand_state_values(manifest);
  side.optimizers = canonical_optim_states(manifest, find_roles(manifest.state));
  for (std::size_t o = 0; o < side.optimizers.size(); ++o)
    for (std::size_t p = 0; p < side.optimizers[o].parameters.size(); ++p) {
      const OptimParameter& parameter = side.optimizers[o].parameters[p];
      if (parameter.weight != kNoTensor) side.places.try_emplace(parameter.weight, o, p);
      for (const OptimLeaf& leaf : parameter.leaves)
        if (leaf.tensor != kNoTensor) side.places.try_emplace(leaf.tensor, o, p);
    }
}

std::optional<OptimizerOfTensor> BrowseReader::optimizer_of(Side& side, std::uint32_t tensor,
                                                            bool with_numbers,
                                                            const TransferOptions& transfer) {
  look_for_optimizers(side);
  const auto place = side.places.find(tensor);
  if (place == side.places.end()) return std::nullopt;
  const Manifest& manifest = side.checkpoint.manifest;
  const OptimState& optimizer = side.optimizers[place->second.optimizer];
  const OptimParameter& parameter = optimizer.parameters[place->second.parameter];
  OptimizerOfTensor out{parameter.fqn,
                        optimizer.root,
                        optimizer.kind,
                        std::string(dialect_name(optimizer.dialect)),
                        parameter.group,
                        {},
                        {},
                        {},
                        {}};
  OptimOptions options;
  options.transfer = transfer;
  options.values = with_numbers;
  options.parameter = parameter.fqn;
  const OptimReport report = inspect_optimizer(side.checkpoint, nullptr, options);
  const OptimizerReport& whole = report.optimizers.at(place->second.optimizer);
  for (const OptimReportGroup& group : whole.groups)
    if (group.index == parameter.group)
      for (const auto& [name, value] : group.options)
        if (!value.is_none()) out.options.emplace_back(name, value_text(value));
  const auto update = std::ranges::find(whole.updates, parameter.fqn, &UpdateRow::fqn);
  if (update != whole.updates.end()) out.update = *update;
  out.update_note = whole.update_note;
  std::map<std::uint32_t, std::size_t> pieces;  // tensor -> place in out.pieces
  const auto add = [&](std::string role, std::uint32_t index) {
    const StoredTensor& stored = manifest.tensors[index];
    pieces.try_emplace(index, out.pieces.size());
    out.pieces.push_back({std::move(role), stored.name, form_of(stored.spec), {}});
  };
  if (parameter.weight != kNoTensor) add("weight", parameter.weight);
  for (const OptimLeaf& leaf : parameter.leaves) {
    if (leaf.tensor != kNoTensor)
      add(leaf.name, leaf.tensor);
    else
      out.pieces.push_back(
          {leaf.name, "", plain_text_of(manifest.state.entries[leaf.entry].value), {}});
  }
  if (!with_numbers || pieces.empty()) return out;
  std::vector<std::uint32_t> tensors;
  for (const auto& [index, at] : pieces) tensors.push_back(index);
  for (TensorStat& number : stat_of(side, tensors, transfer).tensors)
    for (const auto& [index, at] : pieces)
      if (manifest.tensors[index].name.view() == number.name) out.pieces[at].number = number;
  return out;
}

}  // namespace tessera::tools
