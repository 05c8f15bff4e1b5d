// Shared parameters whose source no rank wrote. docs/failures.md has the list.
#include <tessera/base/error.h>

#include <catch2/catch.hpp>

#include "tests/format/fairscale_fixture.h"

namespace failure_catalogue_alias_test {

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("failure 2: an alias of what no rank wrote is named with both names") {
  Scene scene{.wrappers = {{.path = "", .parameters = {{"embed.weight", {11, 6}}}}},
              .world_size = 2};
  scene.wrappers[0].shared = {{"ghost.weight", "decoder.weight"}};
  const SceneCheckpoint checkpoint(scene);
  CHECK_THROWS_WITH(
      fairscale_fsdp_driver().manifest(checkpoint.place(), {}),
      Catch::Contains("\"decoder.weight\" is said to share \"ghost.weight\", which is not there"));
}

}  // namespace failure_catalogue_alias_test
