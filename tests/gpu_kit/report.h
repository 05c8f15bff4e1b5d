#pragma once
// Report: what a part of the kit found, printed as it goes and kept in one JSON file, which is
// whole after every case: a run that is cut off keeps what it has.
#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::gpu_kit {

/// `text` as a JSON string, with its quotes.
std::string json_string(const std::string& text);

class Report {
 public:
  /// Written to `folder`/`part`.json; nowhere where `folder` is "".
  Report(std::string part, std::filesystem::path folder);

  /// Runs `body`: passed unless it throws.
  void run(const std::string& name, const std::function<void()>& body);
  void passed(const std::string& name) { add(name, true, ""); }
  void failed(const std::string& name, const std::string& why) { add(name, false, why); }
  /// A measured value, and what it is measured in ("us", "tokens/s").
  void figure(const std::string& name, double value, const std::string& unit);
  /// A remark, kept as it is.
  void note(const std::string& text);

  std::size_t passes() const { return cases_.size() - failures(); }
  /// Prints `PART: N passed, N failed`. The exit status: 1 where a case failed.
  int finish();

 private:
  struct Case {
    std::string name;
    bool ok = false;
    std::string why;
    double seconds = 0;
  };
  struct Figure {
    std::string name;
    double value = 0;
    std::string unit;
  };
  void add(const std::string& name, bool ok, const std::string& why, double seconds = 0);
  void write() const;
  std::size_t failures() const;

  const std::string part_;
  const std::filesystem::path folder_;
  std::vector<Case> cases_;
  std::vector<Figure> figures_;
  std::vector<std::string> notes_;
};

/// Throws with `what` unless `holds`.
void expect(bool holds, const std::string& what);
/// |ours - theirs| <= tolerance x max(1, |theirs|), and neither is NaN.
void expect_close(double ours, double theirs, double tolerance, const std::string& what);

}  // namespace tessera::gpu_kit
