// Which globals a pickle may name.
#include <tessera/encoding/pickle_globals.h>
#include <tessera/encoding/pickle_reader.h>

#include <catch2/catch.hpp>

#include "tests/support/archive_gather.h"

namespace pickle_globals_test {

using namespace tessera;
using namespace tessera::test;
using namespace std::string_literals;
using Verdict = GlobalUse::Verdict;

namespace {

Code read_code(const std::string& pickle, std::string* message = nullptr) {
  return code_of([&] { read_pickle(as_bytes(pickle)); }, message);
}

std::string getattr_call(const std::string& module, const std::string& name,
                         const std::string& attribute) {
  return "c__builtin__\ngetattr\n(c" + module + "\n" + name + "\nS'" + attribute + "'\ntR.";
}

}  // namespace

TEST_CASE("globals that run code or reach outside are denied") {
  for (const auto& [module, name] : std::vector<std::pair<std::string, std::string>>{
           {"posix", "system"},
           {"nt", "system"},
           {"os", "system"},
           {"os.path", "join"},
           {"sys", "exit"},
           {"subprocess", "Popen"},
           {"importlib", "import_module"},
           {"importlib.util", "spec_from_file_location"},
           {"runpy", "run_path"},
           {"ctypes", "CDLL"},
           {"socket", "socket"},
           {"shutil", "rmtree"},
           {"pickle", "loads"},
           {"_pickle", "loads"},
           {"cPickle", "loads"},
           {"builtins", "eval"},
           {"builtins", "exec"},
           {"builtins", "__import__"},
           {"builtins", "open"},
           {"builtins", "type"},
           {"builtins", "map"},
           {"builtins", "print"},
           {"__builtin__", "eval"},
           {"commands", "Popen"},  // subprocess, since Python 3
           {"__builtin__", "apply"},
           // Modules that other modules hold, and the way out through a class.
           {"random", "_os.system"},
           {"random", "_os"},
           {"torch", "os.system"},
           {"torch", "serialization.pickle.loads"},
           {"my.module", "__builtins__"},
           {"my.module", "builtins.eval"},
           {"my.module", "Thing.__init__.__globals__"}}) {
    INFO(module << "." << name);
    std::string message;
    CHECK(read_code("N0c" + module + "\n" + name + "\n.", &message) == Code::kCorrupt);
    CHECK_THAT(message, Catch::Contains("refused as unsafe: global ") && Catch::Contains(name) &&
                            Catch::Contains("at byte 2"));
    const auto [m, n] = canonical_global(module, name);
    CHECK(classify_global(m, n) == Verdict::kDenied);
  }
}

TEST_CASE("a denied global is found by every opcode that names one") {
  CHECK(read_code("citertools\nimap\n.") == Code::kCorrupt);  // builtins.map, since Python 3
  CHECK(read_code("cos\nsystem\n.") == Code::kCorrupt);
  CHECK(read_code("S'os'\nS'system'\n\x93."s) == Code::kCorrupt);
  CHECK(read_code("\x8c\x02os\x8c\x06system\x93."s) == Code::kCorrupt);
  CHECK(read_code("(S'x'\nios\nsystem\n.") == Code::kCorrupt);
  CHECK(read_code("(cos\nsystem\nS'x'\no.") == Code::kCorrupt);
}

TEST_CASE("data globals are known, all others opaque") {
  for (const auto& [module, name] : std::vector<std::pair<std::string, std::string>>{
           {"collections", "OrderedDict"},
           {"torch", "float8_e4m3fn"},
           {"torch", "FloatStorage"},
           {"torch.storage", "UntypedStorage"},
           {"torch.cuda", "HalfStorage"},
           {"torch._utils", "_rebuild_tensor_v2"},
           {"builtins", "set"},
           {"builtins", "complex"},
           {"torch.distributed.checkpoint.metadata", "Metadata"},
           {"torch.distributed._shard.sharded_tensor.api", "ShardedTensor"},
           {"numpy", "ndarray"},
           {"pathlib", "PosixPath"},
           {"pathlib._local", "PosixPath"}}) {
    INFO(module << "." << name);
    CHECK(classify_global(module, name) == Verdict::kKnown);
  }
  for (const auto& [module, name] :
       std::vector<std::pair<std::string, std::string>>{{"torch.nn.modules.linear", "Linear"},
                                                        {"torch.hub", "load"},
                                                        {"osmnx", "graph"},
                                                        {"systems", "x"},
                                                        {"torch", "load"},
                                                        {"__main__", "Config"}}) {
    INFO(module << "." << name);
    CHECK(classify_global(module, name) == Verdict::kOpaque);
  }
}

TEST_CASE(
    "getattr is allowed for the pairs of real checkpoints and where it may name a member of an "
    "enum") {
  CHECK(read_code(getattr_call("torch.distributed._shard.sharded_tensor.api", "ShardedTensor",
                               "ProcessGroupState")) == Code::kOk);
  CHECK(read_code(getattr_call("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING",
                               "TORCH_CHANNELS_LAST")) == Code::kOk);
  CHECK(read_code(getattr_call("torch.distributed._shard.sharded_tensor.metadata",
                               "MEM_FORMAT_ENCODING", "TORCH_CONTIGUOUS_FORMAT")) == Code::kOk);
  std::string message;
  CHECK(read_code(getattr_call("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING",
                               "__class__"),
                  &message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("refused as unsafe: global builtins.getattr"));
  CHECK(read_code(getattr_call("my.module", "Thing", "ProcessGroupState")) == Code::kOk);
  CHECK(read_code(getattr_call("torch.distributed._shard.sharded_tensor.api", "ShardedTensor",
                               "__init__")) == Code::kCorrupt);
  CHECK(read_code("c__builtin__\ngetattr\n(S'x'\nS'y'\ntR.") == Code::kCorrupt);
  CHECK(read_code("c__builtin__\ngetattr\n)R.") == Code::kCorrupt);
  CHECK(read_code("c__builtin__\ngetattr\n)\x81."s) == Code::kCorrupt);
  CHECK(read_code("c__builtin__\ngetattr\n.") == Code::kCorrupt);
  CHECK(read_code("cfunctools\npartial\n(c__builtin__\ngetattr\ntR.") == Code::kCorrupt);
}

TEST_CASE("globals are listed once, in the order of their first use") {
  std::vector<GlobalUse> globals;
  const std::string pickle = "ca\nb\n0c__builtin__\nset\n0ca\nb\n0cos\nsystem\n."s;
  read_pickle(as_bytes(pickle), {.collect_denied = true, .globals = &globals});
  REQUIRE(globals.size() == 3);
  CHECK(globals[0].name == "a.b");
  CHECK(globals[0].verdict == Verdict::kOpaque);
  CHECK(globals[1].name == "builtins.set");
  CHECK(globals[1].verdict == Verdict::kKnown);
  CHECK(globals[2].name == "os.system");
  CHECK(globals[2].verdict == Verdict::kDenied);
}

TEST_CASE("a refused getattr is listed as denied") {
  std::vector<GlobalUse> globals;
  const std::string pickle = getattr_call("a", "b", "__class__");
  read_pickle(as_bytes(pickle), {.collect_denied = true, .globals = &globals});
  REQUIRE(globals.size() == 2);
  CHECK(globals[0].name == "builtins.getattr");
  CHECK(globals[0].verdict == Verdict::kDenied);
}

}  // namespace pickle_globals_test
