// What unpickling would do: the judgement of names and calls, and the reader that follows a stream.
#include <tessera/encoding/pickle_reader.h>
#include <tessera/encoding/pickle_safety.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "lib/encoding/safety/pickle_names.h"
#include "lib/encoding/safety/pickle_scan.h"

namespace pickle_safety_test {

using namespace tessera;
using namespace std::string_literals;

namespace {

Safety verdict(const std::string& pickle) { return scan_pickle_bytes(as_bytes(pickle)).safety(); }

/// module.name(*arguments) in protocol 0; `arguments`: opcodes.
std::string call_of(const std::string& module, const std::string& name,
                    const std::string& arguments = "") {
  return "c" + module + "\n" + name + "\n(" + arguments + "tR.";
}

std::string made(const std::string& module, const std::string& name) {
  return "\x80\x02"s + "c" + module + "\n" + name + "\n)\x81.";
}

std::string short_text(const std::string& text) {
  return "\x8c"s + static_cast<char>(text.size()) + text;
}

}  // namespace

TEST_CASE("calls of functions are dangerous") {
  for (const auto& [module, name] : std::vector<std::pair<std::string, std::string>>{
           {"os", "system"},
           {"builtins", "eval"},
           {"__builtin__", "eval"},
           {"pty", "spawn"},
           {"timeit", "timeit"},
           {"functools", "partial"},
           {"webbrowser", "open"},
           {"operator", "attrgetter"},
           {"_operator", "itemgetter"},
           {"torch.hub", "load"},
           {"torch", "load"},
           {"torch.utils.cpp_extension", "load_inline"},
           {"marshal", "loads"},
           {"asyncio", "create_subprocess_shell"},
           {"io", "open"},
           {"distutils.spawn", "spawn"},
           {"commands", "getoutput"},
           {"cProfile", "run"},
           {"random", "_os.system"},
           {"json", "loads"},
           {"some_library", "helper"},
           {"lib.utils", "_private_helper"},
           {"lib", "Thing.from_file"},
           {"torch.jit", "script"},
           {"smtplib", "SMTP"},
           {"zipfile", "ZipFile"},
           {"torch.nn", "Linear"},
           {"numpy._core", "_ufunc_reconstruct"},
           {"uuid", "_get_command_stdout"},
           {"pip", "main"},
           {"torch.fx.graph_module", "reduce_graph_module"},
           {"torch.storage", "_load_from_bytes"},
           {"lib", "__loader__"},
           {"logging", "FileHandler"}}) {
    INFO(module << "." << name);
    CHECK(verdict(call_of(module, name, "S'x'\n")) == Safety::kDangerous);
    // INST and OBJ are calls as well.
    CHECK(verdict("(S'x'\ni" + module + "\n" + name + "\n.") == Safety::kDangerous);
    CHECK(verdict("(c" + module + "\n" + name + "\nS'x'\no.") == Safety::kDangerous);
  }
}

TEST_CASE("names that run code are dangerous where they only stand") {
  for (const auto& [module, name] :
       std::vector<std::pair<std::string, std::string>>{{"os", "system"},
                                                        {"pty", "spawn"},
                                                        {"functools", "partial"},
                                                        {"torch.hub", "load"},
                                                        {"types", "CodeType"},
                                                        {"ssl", "get_server_certificate"},
                                                        {"aiohttp.client", "ClientSession"}})
    CHECK(verdict("c" + module + "\n" + name + "\n.") == Safety::kDangerous);
  // Others are named by honest files: an activation function in a configuration.
  CHECK(verdict("ctorch.nn.functional\ngelu\n.") == Safety::kUnknown);
  CHECK(verdict("cjson\nloads\n.") == Safety::kUnknown);
}

TEST_CASE("what real checkpoints hold is not dangerous") {
  for (const auto& [module, name] : std::vector<std::pair<std::string, std::string>>{
           {"argparse", "Namespace"},
           {"collections", "deque"},
           {"datetime", "datetime"},
           {"decimal", "Decimal"},
           {"fractions", "Fraction"},
           {"uuid", "UUID"},
           {"types", "SimpleNamespace"},
           {"re", "_compile"},
           {"omegaconf.dictconfig", "DictConfig"},
           {"mylib.enums", "Color"},
           {"__torch__.net", "Model"},
           {"torch", "Generator"},
           {"torch.return_types", "max"},
           {"numpy.core.numeric", "_frombuffer"},
           {"sklearn.tree._tree", "__pyx_unpickle_Tree"},
           {"zoneinfo", "ZoneInfo._unpickle"}}) {
    INFO(module << "." << name);
    CHECK(verdict(call_of(module, name, "S'x'\n")) == Safety::kUnknown);
  }
  for (const auto& [module, name] :
       std::vector<std::pair<std::string, std::string>>{{"torch.nn.modules.linear", "Linear"},
                                                        {"torch.optim.adamw", "AdamW"},
                                                        {"uuid", "UUID"},
                                                        {"mylib", "config"},
                                                        {"logging", "Logger"}}) {
    INFO(module << "." << name);
    CHECK(verdict(made(module, name)) == Safety::kUnknown);
  }
}

TEST_CASE("plain data is safe") {
  for (const auto& [module, name] : std::vector<std::pair<std::string, std::string>>{
           {"collections", "OrderedDict"},
           {"collections", "Counter"},
           {"torch", "FloatStorage"},
           {"torch", "Size"},
           {"torch", "device"},
           {"torch._utils", "_rebuild_tensor_v2"},
           {"torch._utils", "_rebuild_nested_tensor"},
           {"torch.nested._internal.nested_tensor", "_rebuild_njt"},
           {"torch.nn.parameter", "UninitializedParameter"},
           {"torch.nn.parameter", "Parameter"},
           {"_codecs", "encode"},
           {"builtins", "set"},
           {"__builtin__", "set"},
           {"numpy.core.multiarray", "_reconstruct"},
           {"numpy", "dtype"},
           {"torch.distributed.checkpoint.metadata", "Metadata"}}) {
    INFO(module << "." << name);
    CHECK(verdict(call_of(module, name)) == Safety::kSafe);
  }
  CHECK(verdict("(dp0\nS'a'\nI1\ns.") == Safety::kSafe);
  // Modules that the reader knows whole hold what they imported, too.
  CHECK(verdict(call_of("torch.distributed.checkpoint.metadata", "field")) == Safety::kDangerous);
}

TEST_CASE("a member of an enum is a class called with an integer") {
  CHECK(verdict(call_of("torch.distributed.fsdp.api", "ShardingStrategy", "I1\n")) ==
        Safety::kUnknown);
  CHECK(verdict(call_of("signal", "Signals", "I2\n")) == Safety::kUnknown);
  CHECK(verdict(call_of("torch.distributed.fsdp.api", "ShardingStrategy", "S'x'\n")) ==
        Safety::kDangerous);
  CHECK(verdict(call_of("timeit", "Timer", "I2\n")) == Safety::kDangerous);
  CHECK(verdict("c__builtin__\ngetattr\n(cmylib\nColor\nS'RED'\ntR.") == Safety::kUnknown);
  CHECK(verdict("c__builtin__\ngetattr\n(cmylib\nColor\nS'__init__'\ntR.") == Safety::kDangerous);
  CHECK(verdict("c__builtin__\ngetattr\n(ctimeit\nTimer\nS'timeit'\ntR.") == Safety::kDangerous);
  // A member belongs to everybody: nothing may be set on it.
  CHECK(verdict("c__builtin__\ngetattr\n(cmylib\nColor\nS'RED'\ntR(dS'a'\nI1\nsb.") ==
        Safety::kDangerous);
}

TEST_CASE("copyreg makes the class that it is given") {
  const std::string object = "c__builtin__\nobject\n";
  CHECK(verdict(call_of("copy_reg", "_reconstructor", "cmylib\nThing\n" + object + "N")) ==
        Safety::kUnknown);
  CHECK(verdict(call_of("copy_reg", "_reconstructor", "cmylib\nThing\nc__builtin__\ndict\n(d")) ==
        Safety::kUnknown);
  // Its base is called where it is another one.
  CHECK(verdict(call_of("copy_reg", "_reconstructor",
                        "czipfile\nZipFile\nczipfile\nZipFile\nS'x'\n")) == Safety::kDangerous);
  CHECK(verdict(call_of("copyreg", "__newobj__", "cmylib\nThing\n")) == Safety::kUnknown);
  CHECK(verdict(call_of("copyreg", "__newobj__", "cfunctools\npartial\n")) == Safety::kDangerous);
  CHECK(verdict(call_of("copyreg", "add_extension", "S'a'\n")) == Safety::kDangerous);
}

TEST_CASE("functions that call what they are given are judged by it") {
  CHECK(verdict(call_of("torch._tensor", "_rebuild_from_type_v2",
                        "ctorch._utils\n_rebuild_tensor_v2\nctorch\nTensor\n)N")) == Safety::kSafe);
  CHECK(verdict(call_of("torch._tensor", "_rebuild_from_type_v2",
                        "cjson\nloads\nctorch\nTensor\n)N")) == Safety::kDangerous);
  CHECK(verdict(call_of("numpy.random._pickle", "__generator_ctor",
                        "S'PCG64'\ncnumpy.random._pickle\n__bit_generator_ctor\n")) ==
        Safety::kUnknown);
  CHECK(verdict(call_of("numpy.random._pickle", "__generator_ctor", "S'ls'\ncjson\nloads\n")) ==
        Safety::kDangerous);
}

TEST_CASE("tricks of pickles that no pickler writes") {
  // The result of a call is called.
  CHECK(verdict("cmylib\nThing\n)R)R.") == Safety::kDangerous);
  // State, items and keys are set on a class, or on what a module holds.
  CHECK(verdict("cmylib\nThing\n(N(dS'x'\nI1\nstb.") == Safety::kDangerous);
  CHECK(verdict("cmylib\nREGISTRY\nS'a'\nI1\ns.") == Safety::kDangerous);
  CHECK(verdict("cmylib\nREGISTRY\nI1\na.") == Safety::kDangerous);
  // A name that a call makes.
  CHECK(verdict("\x80\x04"s + "c__builtin__\nstr\n(S'os'\ntR\x8c\x06system\x93.") ==
        Safety::kDangerous);
  // A name in bytes of protocol 0, with escapes.
  CHECK(verdict("\x80\x04S'\\x6fs'\nV\\u0073ystem\n\x93."s) == Safety::kDangerous);
  // PROTO in the middle, values left on the stack, a second pickle, one that breaks off.
  CHECK(verdict("N\x80\x02N" + call_of("os", "system", "S'x'\n")) == Safety::kDangerous);
  CHECK(verdict("N." + call_of("os", "system", "S'x'\n")) == Safety::kDangerous);
  CHECK(verdict(call_of("os", "system", "S'x'\n").substr(0, 20)) == Safety::kDangerous);
  CHECK(verdict("\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93\x94."s) == Safety::kDangerous);
  // The memo by any number, and a slot that nobody wrote.
  CHECK(verdict("\x80\x02\x8c\x02osr\xff\xff\xff\x7f"
                "0j\xff\xff\xff\x7f\x8c\x06system\x93."s) == Safety::kDangerous);
  CHECK(verdict("\x80\x02h\x07)R."s) == Safety::kDangerous);
  // The extension registry: who knows.
  CHECK(verdict("\x80\x02\x82\x01."s) == Safety::kUnknown);
  CHECK(verdict("\x80\x02\x82\x01)R."s) == Safety::kDangerous);
  // A persistent id is what the loader makes of it.
  CHECK(verdict("\x80\x02K\x01Q."s) == Safety::kSafe);
  CHECK(verdict("\x80\x02K\x01Q)R."s) == Safety::kDangerous);
}

TEST_CASE("a broken pickle is at least unknown") {
  CHECK(verdict("\x80\x02}q\x00(X"s) == Safety::kUnknown);
  CHECK(verdict("\x80\x02\xff"s) == Safety::kUnknown);
  const PickleScan scan = scan_pickle_bytes(as_bytes("\x80\x02}q\x00(X"s));
  CHECK(scan.broken);
  CHECK(scan.problem.find("ends early") != std::string::npos);
}

TEST_CASE("raw bytes inside a stream hide nothing") {
  // joblib puts the bytes of arrays between the opcodes.
  std::string pickle = "\x80\x04" + short_text("joblib.numpy_pickle") +
                       short_text("NumpyArrayWrapper") + "\x93)\x81" + std::string(3000, '\xff') +
                       "cposix\nsystem\n(S'x'\ntR.";
  CHECK(verdict(pickle) == Safety::kDangerous);
  pickle = "\x80\x04N" + std::string(70, '\xfe') + short_text("pty") + "\x94" +
           short_text("spawn") + "\x94\x93.";
  CHECK(verdict(pickle) == Safety::kDangerous);
}

TEST_CASE("bytes that are no pickle are not taken for one") {
  for (const std::string& text :
       {"class Foo:\n  pass\n"s, "cat\ndog\n"s, "(hello)\n"s, "\x80\x02\x00\x01\x02\x03"s,
        "\x80\x05\x9c\x3e\x00\x00\x80\x3f"s, "import os\nos.system('x')\n"s, ""s})
    CHECK_FALSE(scan_pickle_bytes(as_bytes(text)).is_pickle());
  CHECK(scan_pickle_bytes(as_bytes("\x80\x02N."s)).is_pickle());
  CHECK(scan_pickle_bytes(as_bytes("cos\nsystem\n(S'x'\ntR."s)).is_pickle());
}

TEST_CASE("a bomb of opcodes costs little") {
  for (const char* opcodes : {"\x85", "N", "}", "\x8c\x02os\x94", ")", "h\x00\x85"}) {
    std::string pickle =
        "\x80\x04"
        "cmylib\nThing\nq\x00"s;
    while (pickle.size() < 400'000) pickle += opcodes;
    const PickleScan scan = scan_pickle_bytes(as_bytes(pickle + "."));
    CHECK(scan.safety() != Safety::kDangerous);
  }
}

TEST_CASE("values are judged as their pickles are") {
  const auto value = [](const std::string& pickle) {
    const PickleGraph graph = read_pickle(as_bytes(pickle));
    return decode_pickle(graph, graph.root(), {});
  };
  CHECK_FALSE(judge_value(value("(dS'a'\nI1\ns.")));
  const std::string object = "cargparse\nNamespace\n(tR";
  const auto worst = judge_value(value("(dS'a'\n(l" + object + "asS'b'\nI1\ns."));
  REQUIRE(worst);
  CHECK(worst->safety == Safety::kUnknown);
  CHECK(worst->name == "argparse.Namespace");
  const auto call = judge_value(value("(dS'a'\n(dS'b'\nctimeit\ntimeit\n(S'x'\ntRss."));
  REQUIRE(call);
  CHECK(call->safety == Safety::kDangerous);
  CHECK(call->name == "timeit.timeit");
  // Inside of an argument and of state.
  CHECK(judge_value(value("cmylib\nThing\n(cpty\nspawn\n(S'x'\ntRtR."))->safety ==
        Safety::kDangerous);
  CHECK(judge_value(value("cmylib\nThing\n)R(dS'a'\ncpty\nspawn\n(S'x'\ntRsb."))->safety ==
        Safety::kDangerous);
  // DCP unpickles the bytes of such an item.
  const Value item = Value::bytes(call_of("os", "system", "S'x'\n"), Value::Kind::kBytesIo);
  CHECK(judge_value(item)->safety == Safety::kDangerous);
  CHECK_FALSE(judge_value(Value::bytes("plain", Value::Kind::kBytesIo)));
}

TEST_CASE("docs/safety.md publishes the names of the tables") {
  std::ifstream stream(TESSERA_SOURCE_DIR "/docs/safety.md");
  const std::string page{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  const auto has = [&](std::string_view section, const std::string& name) {
    const std::size_t begin = page.find("### " + std::string(section));
    const std::size_t end = page.find("\n#", begin + 4);
    return page.substr(begin, end - begin).find("`" + name + "`") != std::string::npos;
  };
  for (const std::string_view module : dangerous_modules())
    CHECK(has("Dangerous wherever they stand: modules", std::string(module)));
  for (const auto& [module, name] : dangerous_names())
    CHECK(
        has("Dangerous wherever they stand: names", std::string(module).append(".").append(name)));
  for (const auto& [module, name] : harmless_names())
    CHECK(has("Harmless calls", std::string(module).append(".").append(name)));
}

}  // namespace pickle_safety_test
