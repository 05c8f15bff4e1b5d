// Universal Checkpoints are written for tensor parallelism 1, and say so.
#include <tessera/ops/convert.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"

namespace deepspeed_one_part_test {

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("a Universal Checkpoint says that tensor parallelism 1 is assumed") {
  for (const std::string sample : {"deepspeed/zero2_w2", "deepspeed/zero3_w2", "dcp/fsdp2_w2"}) {
    CAPTURE(sample);
    MemoryFileSystem fs;
    ConvertOptions options =
        convert_options(load_sample(fs, sample), "/out", std::nullopt, "deepspeed-universal");
    const ConvertReport report = convert(fs, options);
    const auto note = std::ranges::find(report.notes, "CK100", note_code<Note>);
    const bool has_cat_dim = sample != "deepspeed/zero3_w2";  // stage 3: bare flat tensors
    REQUIRE((note != report.notes.end()) == has_cat_dim);
    if (has_cat_dim)
      CHECK(note->message.find("load it with tensor parallelism 1") != note->message.npos);
  }
}

}  // namespace deepspeed_one_part_test
