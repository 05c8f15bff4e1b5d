#pragma once
// A job for tests of saves in the background: one tensor in rows, one in columns that lies with
// strides, a replicated one, a 0-dim step, and values; all of them tell the step they are of.
#include <tessera/live/load.h>
#include <tessera/live/save.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/live_job.h"

namespace tessera::test {

inline SaveOptions to(FileSystem& fs) {
  SaveOptions options;
  options.file_system = &fs;
  return options;
}

inline void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("expected: " + what);
}

struct Trainer {
  explicit Trainer(int rank_, int world_)
      : rank(rank_), world(world_), rows(64), columns(40), bias(16) {}

  LiveState state() {
    LiveState made;
    made.add_piece("w", {DType::kFloat32, {world * 8, 8}},
                   {Chunk::whole_of({{rank * 8, 0}, {8, 8}}), rows.data(), {}});
    made.add_piece("columns", {DType::kFloat32, {world * 4, 5}},  // every second element
                   {Chunk::whole_of({{rank * 4, 0}, {4, 5}}), columns.data(), {2, 8}});
    made.add("bias", {DType::kFloat32, {16}, {}, bias.data()});
    made.add("step", {DType::kFloat32, {}, {}, &step});
    made.add_value("epoch", Value::integer(static_cast<std::int64_t>(step) / 10));
    made.add_value("note", Value::string(note));
    made.add_value("rng", Value::bytes(generator()), ValueScope::kPerRank);
    made.changed = [this, made_at = version.load()] {
      return version == made_at ? std::string() : std::string("w");
    };
    return made;
  }
  /// Of the step, and always as long.
  std::string generator() const {
    return "r" + std::to_string(rank) + "." + std::to_string(1000000 + static_cast<int>(step));
  }
  void set(float value) {
    step = value;
    for (float& x : rows) x = value * 100 + static_cast<float>(rank);
    for (float& x : columns) x = value * 10 + static_cast<float>(rank);
    for (float& x : bias) x = value * 100;
    ++version;
  }
  bool is(float value) const {
    for (const float x : rows)
      if (x != value * 100 + static_cast<float>(rank)) return false;
    for (std::size_t i = 0; i < columns.size(); i += 2)
      if (columns[i] != value * 10 + static_cast<float>(rank)) return false;
    for (const float x : bias)
      if (x != value * 100) return false;
    return step == value;
  }

  int rank;
  int world;
  std::vector<float> rows, columns, bias;
  float step = 0;
  std::string note = "short";
  std::atomic<int> version = 0;
};

}  // namespace tessera::test
