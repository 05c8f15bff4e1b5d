#include "tests/gpu_kit/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <stdexcept>

namespace tessera::gpu_kit {

namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// JSON has no word for these.
std::string json_number(double value) {
  return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null";
}

}  // namespace

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += {'\\', c};
    else if (c == '\n')
      out += "\\n";
    else if (byte < 0x20 || byte >= 0x7f)
      out += fmt::format("\\u{:04x}", byte);
    else
      out += c;
  }
  return out + '"';
}

Report::Report(std::string part, std::filesystem::path folder)
    : part_(std::move(part)), folder_(std::move(folder)) {
  write();
}

void Report::run(const std::string& name, const std::function<void()>& body) {
  const double start = seconds_now();
  try {
    body();
    add(name, true, "", seconds_now() - start);
  } catch (const std::exception& error) {
    add(name, false, error.what(), seconds_now() - start);
  }
}

void Report::add(const std::string& name, bool ok, const std::string& why, double seconds) {
  cases_.push_back({name, ok, why, seconds});
  // LibTorch's messages go on with a stack trace.
  if (!ok) fmt::print("{}: FAILED {}: {}\n", part_, name, why.substr(0, why.find('\n')));
  std::fflush(stdout);
  write();
}

void Report::figure(const std::string& name, double value, const std::string& unit) {
  figures_.push_back({name, value, unit});
  fmt::print("{}: {} = {:.6g} {}\n", part_, name, value, unit);
  std::fflush(stdout);
  write();
}

void Report::note(const std::string& text) {
  notes_.push_back(text);
  fmt::print("{}: {}\n", part_, text);
  std::fflush(stdout);
  write();
}

std::size_t Report::failures() const {
  return static_cast<std::size_t>(std::ranges::count(cases_, false, &Case::ok));
}

int Report::finish() {
  fmt::print("{}: {} passed, {} failed\n", part_, passes(), failures());
  std::fflush(stdout);
  return failures() == 0 ? 0 : 1;
}

void Report::write() const {
  if (folder_.empty()) return;
  std::string text = fmt::format("{{\"part\": {}, \"passed\": {}, \"failed\": {},\n \"cases\": [",
                                 json_string(part_), passes(), failures());
  for (const Case& each : cases_)
    text += fmt::format("{}\n  {{\"name\": {}, \"ok\": {}, \"seconds\": {}{}}}",
                        &each == cases_.data() ? "" : ",", json_string(each.name), each.ok,
                        json_number(each.seconds),
                        each.ok ? "" : ", \"why\": " + json_string(each.why.substr(0, 2000)));
  text += "],\n \"figures\": [";
  for (const Figure& each : figures_)
    text += fmt::format("{}\n  {{\"name\": {}, \"value\": {}, \"unit\": {}}}",
                        &each == figures_.data() ? "" : ",", json_string(each.name),
                        json_number(each.value), json_string(each.unit));
  text += "],\n \"notes\": [";
  for (const std::string& each : notes_)
    text += (&each == notes_.data() ? "\n  " : ",\n  ") + json_string(each);
  const std::filesystem::path file = folder_ / (part_ + ".json"), next = folder_ / (part_ + ".new");
  std::ofstream(next, std::ios::binary) << text << "]}\n";
  std::filesystem::rename(next, file);
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

void expect_close(double ours, double theirs, double tolerance, const std::string& what) {
  const double room = tolerance * std::max(1.0, std::abs(theirs));
  expect(std::abs(ours - theirs) <= room,  // false for a NaN
         fmt::format("{}: {:.9g}, expected {:.9g} within {:.2g}", what, ours, theirs, room));
}

}  // namespace tessera::gpu_kit
