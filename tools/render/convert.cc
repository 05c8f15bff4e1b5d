#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>

#include "tools/render/number_text.h"
#include "tools/render/render.h"
#include "tools/render/table.h"

namespace tessera::tools {
namespace {

constexpr std::size_t kMostFiles = 20;

std::string file_table(const ConvertReport& r, const Screen& screen) {
  Table table({{"file", false, 1}, {"bytes", true}, {"tensor bytes", true}, {"chunks", true}});
  for (std::size_t i = 0; i < std::min(kMostFiles, r.files.size()); ++i) {
    const ConvertedFile& file = r.files[i];
    table.add({printable(file.path), count_text(file.size_bytes), count_text(file.tensor_bytes),
               count_text(file.tensors)});
  }
  std::string text = table.empty() ? std::string() : table.render(screen, "  ");
  if (r.files.size() > kMostFiles)
    text += fmt::format("  ... and {} more files\n", r.files.size() - kMostFiles);
  return text;
}

/// Each kind in one line; the first changes of a dry run below it.
std::string transformation_lines(const ConvertReport& r, bool dry_run, const Screen& screen) {
  constexpr std::size_t kMostChanges = 5;
  std::string text;
  for (const AppliedTransformation& applied : r.transformations) {
    std::string what = applied.kind == "rename" ? std::string() : printable(applied.detail);
    if (!applied.of_values())
      what += (what.empty() ? "" : ", ") + counted(applied.tensors, "tensor");
    text += fact_line(applied.kind, what, screen);
    const std::size_t shown = dry_run ? std::min(kMostChanges, applied.changes.size()) : 0;
    for (std::size_t i = 0; i < shown; ++i)
      text += fact_line("", printable(applied.changes[i]), screen);
    if (shown > 0 && shown < applied.changes.size())
      text += fact_line("", fmt::format("... and {} more", applied.changes.size() - shown), screen);
  }
  return text;
}

/// What a cast did to the bytes of each type.
std::string dtype_table(const ConvertReport& r, const Screen& screen) {
  if (r.dtypes.empty()) return {};
  Table table(
      {{"type", false, 1}, {"before", true}, {"bytes", true}, {"after", true}, {"bytes", true}});
  for (const DTypeTotal& total : r.dtypes)
    table.add({std::string(torch_name(total.dtype)), count_text(total.tensors_before),
               format_bytes(total.bytes_before), count_text(total.tensors_after),
               format_bytes(total.bytes_after)});
  return table.render(screen, "  ");
}

std::string lists(const ConvertReport& r, bool dry_run, const Screen& screen) {
  std::string text = transformation_lines(r, dry_run, screen) + dtype_table(r, screen);
  const auto add_names = [&](std::string_view label, const std::vector<std::string>& names) {
    for (std::size_t i = 0; i < std::min<std::size_t>(10, names.size()); ++i) {
      text += fact_line(i ? "" : label, printable(names[i]), screen);
    }
    if (names.size() > 10)
      text += fact_line("", fmt::format("... and {} more", names.size() - 10), screen);
  };
  std::vector<std::string> lost;
  for (const LostTensor& tensor : r.lost) lost.push_back(tensor.name + ": " + tensor.reason);
  add_names("lost", lost);
  add_names("dropped", r.dropped);
  add_names("copied", r.assets);
  add_names("not equal", r.verify_findings);
  return text + render_notes(r.notes, 10, screen);
}

std::string target_text(const ConvertReport& r) {
  return r.to +
         (r.world_size
              ? fmt::format(" for {}", counted(static_cast<std::uint64_t>(*r.world_size), "rank"))
              : "");
}

std::string plan_text(const ConvertReport& r, const Screen& screen) {
  std::string text = screen.paint(Tint::kBold, "dry run: nothing was written") + "\n";
  text += fact_line("from", fmt::format("{} ({})", printable(r.source), r.from), screen);
  text += fact_line("to", fmt::format("{} ({})", printable(r.destination), target_text(r)), screen);
  text += fact_line(
      "reads", fmt::format("{} of {}", format_bytes(r.source_bytes), counted(r.tensors, "tensor")),
      screen);
  text += fact_line("writes",
                    fmt::format("{} bytes ({}) in {}; seal up to {}", count_text(r.output_bytes),
                                format_bytes(r.output_bytes), counted(r.files.size(), "file"),
                                format_bytes(r.seal_bytes)),
                    screen);
  text += fact_line("disk",
                    fmt::format("{} free, {} temporary", format_bytes(r.free_bytes),
                                format_bytes(r.temporary_bytes)),
                    screen);
  if (r.replaced_bytes) text += fact_line("replaces", format_bytes(r.replaced_bytes), screen);
  text +=
      fact_line("memory",
                fmt::format("at most {}: {} staged, {} metadata (a pickle's values: at most {})",
                            format_bytes(r.peak_memory_bound), format_bytes(r.staged_bytes_bound),
                            format_bytes(r.metadata_bytes), format_bytes(r.metadata_limit_bytes)),
                screen);
  return text + file_table(r, screen) + lists(r, true, screen);
}

/// "content, values, steps and groups equal the source", as far as they are there.
std::string verified_lines(const ConvertReport& r, const Screen& screen) {
  const VerifyScope& scope = r.verify_scope;
  const std::vector<std::string>& all = scope.compared;
  std::string what;
  for (std::size_t i = 0; i < all.size(); ++i)
    what += (i == 0 ? "" : i + 1 < all.size() ? ", " : " and ") + all[i];
  // What was left out comes first (verify_scope()); it stands in the balance.
  const std::size_t left_out = r.balance.left_out().size();
  const std::string of_it = left_out == 0 ? "" : "of what was written, ";
  std::string text =
      fact_line("verified",
                what.empty() ? "that it is empty, as the source is"
                             : of_it + what + (what == "content" ? " equals" : " equal") +
                                   " the source" + not_compared_text(r.not_compared),
                screen);
  for (std::size_t i = left_out; i < scope.not_compared.size(); ++i)
    text += fact_lines(i == left_out ? "but" : "", printable(scope.not_compared[i]), 2, screen);
  return text;
}

std::string outcome_text(const ConvertReport& r, const Screen& screen) {
  if (!r.published) {
    return screen.paint(Tint::kRed, "NOT PUBLISHED") +
           fmt::format("  {}: the result is not equal to the source\n", printable(r.destination));
  }
  std::string text = screen.paint(Tint::kGreen, "wrote") + "  " +
                     screen.clip(printable(r.destination), screen.width - 8) + "\n";
  std::string what = fmt::format("{}, {}, {}, {} in {}", target_text(r),
                                 counted(r.tensors, "tensor"), counted(r.files.size(), "file"),
                                 format_bytes(r.output_bytes), seconds_text(r.seconds));
  if (r.seconds >= 0.5)  // below that a rate says nothing
    what += fmt::format(" ({})", rate_text(static_cast<double>(r.bytes_written) / r.seconds));
  text += "  " + what + "\n";
  if (r.resumed_bytes)
    text += fact_line("resumed", format_bytes(r.resumed_bytes) + " were there already", screen);
  if (r.verified) text += verified_lines(r, screen);
  return text;
}

}  // namespace

std::string render_convert(const ConvertReport& r, bool dry_run, const Screen& screen) {
  return dry_run ? plan_text(r, screen) : outcome_text(r, screen) + lists(r, false, screen);
}

}  // namespace tessera::tools
