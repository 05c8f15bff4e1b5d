// Attributes that Python code put on tensors: nothing keeps them, and that is said.
#include <tessera/format/torch_save.h>

#include <catch2/catch.hpp>

#include "tests/support/note_text.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::torch_save_attributes_test {

TEST_CASE("attributes of tensors are named, and so is a tensor of each, where they are not kept") {
  const auto fs = make_posix_file_system();
  const auto data = fs->open_directory(TESSERA_SOURCE_DIR "/tests/format/data");
  const Place place{data.get(), "tensor_attributes.pt", "tensor_attributes.pt"};
  const Manifest manifest = testing::read_all(torch_save_driver(), place);
  CHECK(testing::content_of(manifest, *data).size() == 3);
  std::string told;
  for (const Note& note : manifest.notes)
    if (testing::note_code(note) == "CK061" && note.severity == Severity::kWarning)
      told += note.tensor + ": " + note.message + "\n";
  CHECK(told ==
        "p: tensors have the Python attribute \"role\", which is not kept\n"
        "p: tensors have the Python attribute \"other\", which is not kept\n"
        "t: tensors have the Python attribute \"note\", which is not kept\n");
}

TEST_CASE("what frameworks note on tensors for themselves is no news") {
  const testing::SampleCase sample("torchsave/parameter_zip");  // with a torch.nn.Buffer
  const Place place{sample.directory.get(), "file.pt", "file.pt"};
  for (const Note& note : testing::read_all(torch_save_driver(), place).notes)
    CHECK(testing::note_code(note) != "CK061");
}

TEST_CASE("what Megatron notes on masters is no news, what a program calls alike is") {
  const auto fs = make_posix_file_system();
  const auto data = fs->open_directory(TESSERA_SOURCE_DIR "/tests/format/data");
  const Place place{data.get(), "megatron_attributes.pt", "megatron_attributes.pt"};
  const Manifest manifest = testing::read_all(torch_save_driver(), place);
  std::string told;
  for (const Note& note : manifest.notes)
    if (testing::note_code(note) == "CK061") told += note.tensor + ": " + note.message + "\n";
  CHECK(told == "own: tensors have the Python attribute \"shared\", which is not kept\n");
}

}  // namespace tessera::torch_save_attributes_test
