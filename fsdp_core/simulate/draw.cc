// A simulated step as pictures and text.
#include <fmt/format.h>
#include <tessera/encoding/json.h>
#include <tessera/fsdp/simulate.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace tessera::fsdp {
namespace {

std::vector<std::string> streams_of(const SimulatedStep& step) {
  std::vector<std::string> out;
  for (const SimulatedSpan& span : step.spans)
    if (std::ranges::find(out, span.stream) == out.end()) out.push_back(span.stream);
  std::ranges::stable_partition(out, [](const std::string& name) { return name == "compute"; });
  return out;
}

std::size_t row_of(const std::vector<std::string>& streams, const SimulatedSpan& span) {
  return static_cast<std::size_t>(std::ranges::find(streams, span.stream) - streams.begin());
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

const char* colour_of(const SimulatedSpan& span) {
  if (span.name.starts_with("forward")) return "#4c78a8";
  if (span.name.starts_with("backward")) return "#2f4b7c";
  if (span.name.starts_with("all-gather")) return "#54a24b";
  return span.name.starts_with("reduce-scatter") ? "#e45756" : "#f58518";
}

Value text(std::string value) { return Value::string(std::move(value)); }

}  // namespace

std::string SimulatedStep::to_string() const {
  const double hidden =
      collective_seconds > 0 ? 1 - std::max(0.0, exposed_seconds) / collective_seconds : 1;
  return fmt::format(
      "step                    {:.3f} ms\n"
      "compute                 {:.3f} ms\n"
      "collectives             {:.3f} ms, {:.1f} % of it beside compute\n"
      "exposed                 {:.3f} ms\n"
      "no schedule is below    {:.3f} ms ({:.3f} of the step)\n"
      "memory at the peak      {:.3f} GB gathered, in gradients and activations\n"
      "memory all the time     {:.3f} GB parameters, gradients and optimizer\n",
      seconds * 1e3, compute_seconds * 1e3, collective_seconds * 1e3, hidden * 100,
      exposed_seconds * 1e3, bound_seconds * 1e3, quality(), peak_bytes / 1e9, state_bytes / 1e9);
}

std::string chrome_trace(const SimulatedStep& step) {
  const std::vector<std::string> streams = streams_of(step);
  ValueList events;
  for (std::size_t row = 0; row < streams.size(); ++row)
    events.push_back(
        Value::dict({{text("name"), text("thread_name")},
                     {text("ph"), text("M")},
                     {text("pid"), Value::integer(0)},
                     {text("tid"), Value::integer(static_cast<std::int64_t>(row))},
                     {text("args"), Value::dict({{text("name"), text(streams[row])}})}}));
  for (const SimulatedSpan& span : step.spans)
    events.push_back(Value::dict(
        {{text("name"), text(span.name)},
         {text("cat"), text(span.collective ? "collective" : "compute")},
         {text("ph"), text("X")},
         {text("pid"), Value::integer(0)},
         {text("tid"), Value::integer(static_cast<std::int64_t>(row_of(streams, span)))},
         {text("ts"), Value::real(span.begin * 1e6)},
         {text("dur"), Value::real((span.end - span.begin) * 1e6)}}));
  return dump_json(Value::dict({{text("displayTimeUnit"), text("ms")},
                                {text("traceEvents"), Value::list(std::move(events))}})) +
         "\n";
}

std::string to_svg(const SimulatedStep& step) {
  constexpr double kWidth = 1200, kLeft = 110, kRow = 30;
  const std::vector<std::string> streams = streams_of(step);
  const double scale = step.seconds > 0 ? kWidth / step.seconds : 0;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n",
      kLeft + kWidth + 10, kRow * (static_cast<double>(streams.size()) + 1));
  for (std::size_t row = 0; row < streams.size(); ++row)
    fmt::format_to(std::back_inserter(out), "<text x=\"4\" y=\"{:.0f}\">{}</text>\n",
                   kRow * static_cast<double>(row) + 19, escaped(streams[row]));
  for (const SimulatedSpan& span : step.spans)
    fmt::format_to(std::back_inserter(out),
                   "<rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"{}\">"
                   "<title>{}: {:.3f} to {:.3f} ms</title></rect>\n",
                   kLeft + span.begin * scale,
                   kRow * static_cast<double>(row_of(streams, span)) + 4,
                   std::max(0.5, (span.end - span.begin) * scale), kRow - 8, colour_of(span),
                   escaped(span.name), span.begin * 1e3, span.end * 1e3);
  fmt::format_to(std::back_inserter(out),
                 "<text x=\"{:.0f}\" y=\"{:.0f}\">{:.3f} ms</text>\n</svg>\n", kLeft,
                 kRow * static_cast<double>(streams.size()) + 19, step.seconds * 1e3);
  return out;
}

}  // namespace tessera::fsdp
