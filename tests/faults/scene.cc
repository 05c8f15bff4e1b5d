#include "tests/faults/scene.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/verify.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <vector>

#include "tests/support/note_text.h"

namespace tessera::faults {
namespace {

namespace stdfs = std::filesystem;

constexpr std::int64_t kRows = 40;

std::string slurp(const stdfs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// What is in it, not itself: a file system may be mounted there.
void clear(const std::string& folder) {
  for (const auto& entry : stdfs::directory_iterator(folder)) stdfs::remove_all(entry.path());
}

void save_value(const std::string& path, float value, bool in_a_run, FileSystem* fs = nullptr) {
  std::vector<float> w(kRows * 4, value), b(7, value + 0.5f);
  LiveState state;
  state.add("w", {DType::kFloat32, {kRows, 4}, {}, w.data()});
  state.add("b", {DType::kFloat32, {7}, {}, b.data()});
  SaveOptions options;
  options.file_system = fs;
  options.force = true;
  options.update_latest = in_a_run;
  options.keep_last = in_a_run ? 2 : 0;
  const auto ranks = single_rank();
  save(path, state, *ranks, options);
}

ConvertOptions options_for(const std::string& from, const std::string& to) {
  ConvertOptions options;
  options.source = from;
  options.destination = to;
  options.threads = 1;
  options.force = true;
  options.memory_limit_bytes = 1 << 20;
  return options;
}

/// Every file below `path`, or the file, with its bytes.
std::string bytes_of(const std::string& path) {
  if (stdfs::is_regular_file(path)) return slurp(path);
  std::map<std::string, std::string> all;
  if (stdfs::exists(path)) {
    for (const auto& entry : stdfs::recursive_directory_iterator(path))
      if (entry.is_regular_file()) all[entry.path().lexically_relative(path)] = slurp(entry.path());
  }
  std::string text;
  for (const auto& [name, content] : all)
    text += fmt::format("{} {}\n{}\n", name, content.size(), content);
  return text;
}

}  // namespace

Scene::Scene() {
  const bool memory = ::access("/dev/shm", W_OK) == 0;
  std::string name = (memory ? "/dev/shm" : stdfs::temp_directory_path().string()) +
                     std::string("/tessera-faults-XXXXXX");
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder");
  folder_ = stdfs::canonical(name).string();
  stdfs::create_directories(folder_ + "/work");
  stdfs::create_directory(folder_ + "/run");
  save_value(source(), 1, false);
  save_value(folder_ + "/other", 2, false);
  // What the writers find, kept beside.
  save_value(folder_ + "/old/run/step_1", 11, true);
  save_value(folder_ + "/old/run/step_2", 12, true);
  const auto fs = make_posix_file_system();
  ConvertOptions old_output = options_for(folder_ + "/other", folder_ + "/old/out");
  old_output.target.world_size = 2;
  tessera::convert(*fs, old_output);
  tessera::convert(*fs, options_for(folder_ + "/other", folder_ + "/old/one.safetensors"));
  // What they make of it.
  stdfs::create_directory(folder_ + "/new");
  prepare_run();
  save_next();
  stdfs::copy(run(), folder_ + "/new/run", stdfs::copy_options::recursive);
  prepare_output();
  reshard();
  stdfs::copy(output(), folder_ + "/new/out", stdfs::copy_options::recursive);
  prepare_file();
  convert();
  stdfs::copy(file(), folder_ + "/new/one.safetensors");
  stdfs::copy(file() + ".tessera.json", folder_ + "/new/one.safetensors.tessera.json");
}

std::string Scene::shown_run() const {
  const std::string first = bytes_of(run() + "/step_1");  // retention may not have come to it
  if (!first.empty() && first != bytes_of(folder_ + "/old/run/step_1")) return "step_1 in part";
  if (bytes_of(run() + "/step_2") != bytes_of(folder_ + "/old/run/step_2")) return "step_2 is hurt";
  const std::string third = bytes_of(run() + "/step_3");
  const bool saved = third == bytes_of(folder_ + "/new/run/step_3");
  if (!third.empty() && !saved) return "step_3 in part";
  const std::string latest = slurp(run() + "/latest");
  if (latest == "step_3") return saved ? "new" : "the pointer names nothing";
  if (latest != "step_2") return "the pointer is " + latest;
  return saved ? "between" : "old";
}

std::string Scene::shown_output() const {
  const std::string now = bytes_of(output());
  if (now == bytes_of(folder_ + "/old/out")) return "old";
  return now == bytes_of(folder_ + "/new/out") ? "new" : "a mix";
}

std::string Scene::shown_file() const {
  const std::string now = slurp(file()), seal = slurp(file() + ".tessera.json");
  const std::string old_file = folder_ + "/old/one.safetensors";
  const std::string new_file = folder_ + "/new/one.safetensors";
  if (now == slurp(old_file))  // the old seal goes first
    return seal.empty() || seal == slurp(old_file + ".tessera.json") ? "old" : "the new seal";
  if (now != slurp(new_file)) return "a mix";
  if (seal.empty()) return "between";
  return seal == slurp(new_file + ".tessera.json") ? "new" : "the old seal";
}

Scene::~Scene() {
  std::error_code ignored;
  stdfs::remove_all(folder_, ignored);
}

void Scene::prepare_run() const {
  clear(run());
  stdfs::copy(folder_ + "/old/run", run(), stdfs::copy_options::recursive);
}
void Scene::save_next(FileSystem* fs) const { save_value(run() + "/step_3", 13, true, fs); }

void Scene::restore(const std::string& name) const {
  clear(folder_ + "/work");
  stdfs::copy(folder_ + "/old/" + name, folder_ + "/work/" + name, stdfs::copy_options::recursive);
}

void Scene::prepare_output() const { restore("out"); }
void Scene::reshard(FileSystem* fs) const {
  const auto own = fs == nullptr ? make_posix_file_system() : nullptr;
  ConvertOptions options = options_for(source(), output());
  options.target.world_size = 2;
  tessera::convert(fs == nullptr ? *own : *fs, options);
}

void Scene::prepare_file() const {
  restore("one.safetensors");
  stdfs::copy(folder_ + "/old/one.safetensors.tessera.json", file() + ".tessera.json");
}
void Scene::convert(FileSystem* fs) const {
  const auto own = fs == nullptr ? make_posix_file_system() : nullptr;
  tessera::convert(fs == nullptr ? *own : *fs, options_for(source(), file()));
}

std::string Scene::load_source() const {
  std::vector<float> w(kRows * 4, -1), b(7, -1);
  LiveState state;
  state.add("w", {DType::kFloat32, {kRows, 4}, {}, w.data()});
  state.add("b", {DType::kFloat32, {7}, {}, b.data()});
  const auto ranks = single_rank();
  LoadPolicy policy;
  policy.verify = true;
  try {
    load(source(), state, *ranks, policy);
  } catch (const Error&) {
    for (const float x : w)
      if (x != -1) throw std::runtime_error("a failed load changed memory");
    throw;
  }
  std::string text;
  for (const float x : w) text += fmt::format("{} ", x);
  for (const float x : b) text += fmt::format("{} ", x);
  return text;
}

std::string Scene::verify_source() const {
  const auto fs = make_posix_file_system();
  VerifyOptions options;
  options.level = VerifyLevel::kFull;
  const VerifyReport report = verify_checkpoint(*fs, source(), options);
  std::string text = fmt::format("{} {} {}", report.ok, report.sealed, report.bytes_with_sums);
  for (const Note& note : report.findings)
    text += fmt::format("\n{} [{}] {}", testing::note_code(note), note.file, note.message);
  return text;
}

}  // namespace tessera::faults
