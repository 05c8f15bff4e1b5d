#pragma once
// Checkpoints broken in the ways that people meet, and what Tessera says of them.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/optim.h>
#include <tessera/ops/verify.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"

namespace tessera::testing {

/// A sample in memory at `path`, to be broken.
struct BrokenSample {
  MemoryFileSystem fs;
  std::string path;

  explicit BrokenSample(const std::string& name) : path(load_sample(fs, name)) {}

  void remove(const std::string& file) { fs.remove_file("/source/" + file); }
  void cut(const std::string& file, std::size_t bytes) {
    Bytes content = fs.read_file("/source/" + file);
    content.resize(content.size() - bytes);
    fs.write_file("/source/" + file, content);
  }
  std::string text(const std::string& file) const {
    return std::string(as_text(fs.read_file("/source/" + file)));
  }
  void set_text(const std::string& file, const std::string& text) {
    fs.write_file("/source/" + file, as_bytes(text));
  }

  /// Everything verify finds, a line each: "CK010 error [file] tensor: message".
  std::string verify(VerifyLevel level = VerifyLevel::kQuick) {
    VerifyOptions options;
    options.level = level;
    std::string lines;
    for (const Note& n : verify_checkpoint(fs, path, options).findings)
      lines += fmt::format("{} {} [{}] {}: {}\n", note_code(n), note_severity(n), n.file, n.tensor,
                           n.message);
    return lines;
  }

  /// How a conversion ends: ok, or why not. Nothing is left behind in that case.
  Status convert_to(const std::string& format, std::optional<std::int64_t> ranks = std::nullopt,
                    void (*adjust)(ConvertOptions&) = nullptr) {
    const auto before = fs.contents("/");
    ConvertOptions options = convert_options(path, "/result", ranks, format);
    if (adjust != nullptr) adjust(options);
    try {
      report = convert(fs, options);
    } catch (const Error& error) {
      CHECK(fs.contents("/") == before);
      return error.status();
    }
    return {};
  }
  ConvertReport report;
};

/// "corrupt: ...; hint": what the user reads.
inline std::string said(const Status& status) { return status.to_string() + "; " + status.hint; }

}  // namespace tessera::testing
