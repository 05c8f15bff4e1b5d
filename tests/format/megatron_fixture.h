#pragma once
// What tests of Megatron's rank folders share: the toy model in a folder in memory, its content
// after any number of rewrites, and single files.
#include <tessera/format/megatron_torch.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/format/torch_files/archive_manifest.h"
#include "tests/support/archive_gather.h"
#include "tests/support/megatron_case.h"
#include "tests/support/sample_case.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::testing {

/// Rank files below /c of a file system of their own.
struct RankFolders {
  MemoryFileSystem fs;
  std::unique_ptr<Directory> directory;

  RankFolders() = default;
  explicit RankFolders(const ToyOptions& options) { write_toy(fs, "/c", options); }

  /// A rank's file with this model, and more at its top.
  void write_rank(const std::string& folder, RankArchive& archive,
                  std::vector<std::pair<std::string, Value>> model,
                  std::vector<std::pair<std::string, Value>> more = {}) {
    std::vector<std::pair<std::string, Value>> root = {{"model", dict(std::move(model))},
                                                       {"checkpoint_version", Value::real(3.0)}};
    for (auto& item : more) root.push_back(std::move(item));
    fs.write_file("/c/" + folder + "/model_optim_rng.pt", archive.render(dict(std::move(root))));
  }
  Place place() {
    directory = fs.open_directory("/c");
    return {directory.get(), "", "c"};
  }
  Manifest read(const ReadOptions& options = {}) {
    return read_all(megatron_torch_driver(), place(), options);
  }
  std::map<std::string, std::string> content() {
    const Manifest manifest = read();
    return content_of(manifest, *directory);
  }
  Code failure(std::string& message) {
    return test::code_of([&] { read(); }, &message);
  }
};

inline TargetRequest mesh_request(const std::string& mesh) {
  TargetRequest request;
  request.mesh = Mesh::parse(mesh);
  return request;
}

struct WholeContent {
  std::map<std::string, std::string> tensors, values;
  bool operator==(const WholeContent&) const = default;
};

inline WholeContent whole_content(const Manifest& manifest, const Directory& directory) {
  return {content_of(manifest, directory), values_of(manifest, directory)};
}

/// Writes for each mesh in turn; the content after every step.
inline std::vector<WholeContent> through_meshes(const Directory& start,
                                                const std::vector<std::string>& meshes) {
  std::vector<WholeContent> contents;
  Manifest manifest = read_all(megatron_torch_driver(), {&start, "", "start"});
  contents.push_back(whole_content(manifest, start));
  const Directory* at = &start;
  std::vector<std::unique_ptr<WrittenCheckpoint>> steps;
  for (const std::string& mesh : meshes) {
    steps.push_back(std::make_unique<WrittenCheckpoint>(megatron_torch_driver(), manifest, *at,
                                                        mesh_request(mesh)));
    steps.back()->plan.check(manifest);
    at = steps.back()->directory.get();
    manifest = read_all(megatron_torch_driver(), steps.back()->place());
    contents.push_back(whole_content(manifest, *at));
  }
  return contents;
}

/// Tensors of one file as "path shape sha".
inline std::map<std::string, std::string> tensors_in(const Bytes& file) {
  MemoryFileSystem fs;
  fs.write_file("/f/x.pt", file);
  const auto directory = fs.open_directory("/f");
  ArchiveManifestBuilder builder(*directory, {});
  builder.open("x.pt");
  builder.add_state(0, builder.archive(0).root, {});
  Manifest manifest = builder.finish("x", "x");
  locate_archives(*directory, manifest, all_tensors(manifest), {});
  return content_of(manifest, *directory);
}

/// The message with which the toy cannot be written so.
inline std::string write_failure(const ToyOptions& options, const TargetRequest& request,
                                 Code code) {
  RankFolders toy(options);
  const Manifest manifest = toy.read();
  std::string message;
  const Code got =
      test::code_of([&] { megatron_torch_driver().output_plan(manifest, request); }, &message);
  return got == code ? message : "another code, message: " + message;
}

}  // namespace tessera::testing
