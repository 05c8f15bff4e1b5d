#include "lib/encoding/safety/pickle_names.h"

#include <algorithm>
#include <array>

namespace tessera {
namespace {

// sys.stdlib_module_names of Python 3.11, the old names that pickles of Python 2 spell
// (_compat_pickle), and modules that came or went; sorted.
constexpr std::string_view kStandardModules =
    " "
    "BaseHTTPServer Bastion CGIHTTPServer ConfigParser Cookie Dialog DocXMLRPCServer FileDialog "
    "HTMLParser Queue ScrolledText SimpleDialog SimpleHTTPServer SimpleXMLRPCServer "
    "SocketServer StringIO Tix Tkconstants Tkdnd Tkinter UserDict UserList UserString "
    "__builtin__ __future__ _abc _abcoll _aix_support _ast _asyncio _bisect _blake2 "
    "_bootsubprocess _bz2 _codecs _codecs_cn _codecs_hk _codecs_iso2022 _codecs_jp _codecs_kr "
    "_codecs_tw _collections _collections_abc _compat_pickle _compression _contextvars _crypt "
    "_csv _ctypes _curses _curses_panel _datetime _dbm _decimal _elementtree _frozen_importlib "
    "_frozen_importlib_external _functools _gdbm _hashlib _heapq _imp _io _json _locale _lsprof "
    "_lzma _markupbase _md5 _msi _multibytecodec _multiprocessing _opcode _operator "
    "_osx_support _overlapped _pickle _posixshmem _posixsubprocess _py_abc _pydecimal _pyio "
    "_pyrepl _queue _random _scproxy _sha1 _sha256 _sha3 _sha512 _signal _sitebuiltins _socket "
    "_sqlite3 _sre _ssl _stat _statistics _string _strptime _struct _symtable _thread "
    "_threading_local _tkinter _tokenize _tracemalloc _typing _uuid _warnings _weakref "
    "_weakrefset _winapi _winreg _zoneinfo abc aifc annotationlib antigravity anydbm argparse "
    "array ast asynchat asyncio asyncore atexit audioop base64 bdb binascii bisect builtins bz2 "
    "cPickle cProfile cStringIO calendar cgi cgitb chunk cmath cmd code codecs codeop "
    "collections colorsys commands compileall compression concurrent configparser contextlib "
    "contextvars cookielib copy copy_reg copyreg crypt csv ctypes curses dataclasses datetime "
    "dbhash dbm decimal difflib dis distutils doctest dumbdbm dummy_thread email encodings "
    "ensurepip enum errno exceptions faulthandler fcntl filecmp fileinput fnmatch fractions "
    "ftplib functools gc gdbm genericpath getopt getpass gettext glob graphlib grp gzip hashlib "
    "heapq hmac html htmlentitydefs http httplib idlelib imaplib imghdr imp importlib inspect "
    "io ipaddress itertools json keyword lib2to3 linecache locale logging lzma mailbox mailcap "
    "markupbase marshal math md5 mimetypes mmap modulefinder msilib msvcrt multiprocessing "
    "netrc nis nntplib nt ntpath nturl2path numbers opcode operator optparse os ossaudiodev "
    "pathlib pdb pickle pickletools pipes pkgutil platform plistlib popen2 poplib posix "
    "posixpath pprint profile pstats pty pwd py_compile pyclbr pydoc pydoc_data pyexpat queue "
    "quopri random re readline repr reprlib resource rexec rlcompleter robotparser runpy sched "
    "secrets select selectors sets sha shelve shlex shutil signal site smtpd smtplib sndhdr "
    "socket socketserver spwd sqlite3 sre_compile sre_constants sre_parse ssl stat statistics "
    "string stringprep struct subprocess sunau symtable sys sysconfig syslog tabnanny tarfile "
    "telnetlib tempfile termios test textwrap this thread threading time timeit tkColorChooser "
    "tkCommonDialog tkFileDialog tkFont tkMessageBox tkSimpleDialog tkinter token tokenize "
    "tomllib trace traceback tracemalloc ttk tty turtle turtledemo types typing unicodedata "
    "unittest urllib urllib2 urlparse uu uuid venv warnings wave weakref webbrowser whichdb "
    "winreg winsound wsgiref xdrlib xml xmlrpc xmlrpclib zipapp zipfile zipimport zlib zoneinfo ";

// Each covers its submodules. Modules that run code, start programs, open connections, or load
// code or pickles; what picklescan 1.0.5 and modelscan 0.8 refuse is among them.
constexpr std::string_view kDangerousModules[] = {
    "IPython",
    "_aix_support",
    "_osx_support",
    "_posixshmem",
    "_pyrepl",
    "_winapi",
    "aiohttp",
    "antigravity",
    "asyncio",
    "bdb",
    "cProfile",
    "cffi",
    "code",
    "codeop",
    "commands",
    "compileall",
    "distutils",
    "ensurepip",
    "fabric",
    "ftplib",
    "http.client",
    "http.server",
    "httplib",
    "idlelib",
    "imaplib",
    "imp",
    "lib2to3",
    "marshal",
    "modulefinder",
    "msvcrt",
    "multiprocessing",
    "nntplib",
    "numpy.ctypeslib",
    "numpy.distutils",
    "numpy.f2py",
    "numpy.testing._private.utils",
    "paramiko",
    "pdb",
    "pexpect",
    "pip",
    "pkg_resources",
    "pkgutil",
    "poplib",
    "profile",
    "ptyprocess",
    "pty",
    "py_compile",
    "pydoc",
    "requests.api",
    "rlcompleter",
    "runpy",
    "setuptools",
    "shelve",
    "site",
    "smtpd",
    "smtplib",
    "socketserver",
    "sqlite3",
    "ssl",
    "telnetlib",
    "test",
    "this",
    "timeit",
    "torch._inductor",
    "torch.hub",
    "torch.package",
    "torch.utils.bottleneck",
    "torch.utils.collect_env",
    "torch.utils.cpp_extension",
    "trace",
    "urllib.request",
    "urllib2",
    "venv",
    "webbrowser",
    "xmlrpc",
    "xmlrpclib",
    "zipapp",
    "zipimport",
};

constexpr GlobalName kDangerousNames[] = {
    {"_functools", "partial"},
    {"_functools", "reduce"},
    {"_io", "FileIO"},
    {"_io", "open"},
    {"_io", "open_code"},
    {"_operator", "attrgetter"},
    {"_operator", "itemgetter"},
    {"_operator", "methodcaller"},
    {"cloudpickle.cloudpickle", "_builtin_type"},
    {"cloudpickle.cloudpickle", "_function_setstate"},
    {"cloudpickle.cloudpickle", "_make_cell"},
    {"cloudpickle.cloudpickle", "_make_empty_cell"},
    {"cloudpickle.cloudpickle", "_make_function"},
    {"cloudpickle.cloudpickle", "subimport"},
    {"codecs", "open"},
    {"copyreg", "add_extension"},
    {"copyreg", "pickle"},
    {"dill", "load"},
    {"dill", "loads"},
    {"doctest", "debug_script"},
    {"functools", "partial"},
    {"functools", "partialmethod"},
    {"functools", "reduce"},
    {"io", "FileIO"},
    {"io", "open"},
    {"io", "open_code"},
    {"itertools", "starmap"},
    {"joblib", "load"},
    {"jsonpickle", "decode"},
    {"logging", "FileHandler"},
    {"logging.config", "dictConfig"},
    {"logging.config", "fileConfig"},
    {"logging.config", "listen"},
    {"numpy", "load"},
    {"operator", "attrgetter"},
    {"operator", "itemgetter"},
    {"operator", "methodcaller"},
    {"pandas", "read_pickle"},
    {"torch", "load"},
    {"torch._dynamo.guards", "GuardBuilder.get"},
    {"torch.fx.experimental.symbolic_shapes", "ShapeEnv.evaluate_guards_expression"},
    {"torch.jit.unsupported_tensor_ops", "execWrapper"},
    {"torch.ops", "load_library"},
    {"torch.serialization", "load"},
    {"torch.utils._config_module", "ConfigModule.load_config"},
    {"torch.utils.data.datapipes.utils.decoder", "basichandlers"},
    {"types", "CodeType"},
    {"types", "FunctionType"},
    {"types", "LambdaType"},
    {"types", "MethodType"},
    {"yaml", "load"},
    {"yaml", "unsafe_load"},
};

constexpr GlobalName kHarmlessNames[] = {
    {"_pydecimal", "Decimal"},
    {"argparse", "Namespace"},
    {"array", "_array_reconstructor"},
    {"array", "array"},
    {"collections", "ChainMap"},
    {"collections", "UserDict"},
    {"collections", "UserList"},
    {"collections", "UserString"},
    {"collections", "deque"},
    {"copyreg", "__newobj__"},
    {"copyreg", "__newobj_ex__"},
    {"copyreg", "_reconstructor"},
    {"datetime", "date"},
    {"datetime", "datetime"},
    {"datetime", "time"},
    {"datetime", "timedelta"},
    {"datetime", "timezone"},
    {"decimal", "Context"},
    {"decimal", "Decimal"},
    {"fractions", "Fraction"},
    {"http", "HTTPStatus"},
    {"ipaddress", "IPv4Address"},
    {"ipaddress", "IPv4Interface"},
    {"ipaddress", "IPv4Network"},
    {"ipaddress", "IPv6Address"},
    {"ipaddress", "IPv6Interface"},
    {"ipaddress", "IPv6Network"},
    {"itertools", "count"},
    {"logging", "getLogger"},
    {"numpy._core.numeric", "_frombuffer"},
    {"numpy.core.numeric", "_frombuffer"},
    {"numpy.ma.core", "_mareconstruct"},
    {"numpy.random", "__RandomState_ctor"},
    {"numpy.random._pickle", "__bit_generator_ctor"},
    {"numpy.random._pickle", "__generator_ctor"},
    {"numpy.random._pickle", "__randomstate_ctor"},
    {"pandas._libs.internals", "_unpickle_block"},
    {"pandas._libs.tslibs.nattype", "_nat_unpickle"},
    {"pandas._libs.tslibs.offsets", "_offset_unpickle"},
    {"pandas._libs.tslibs.timedeltas", "_timedelta_unpickle"},
    {"pandas._libs.tslibs.timestamps", "_unpickle_timestamp"},
    {"pandas.core.indexes.base", "_new_Index"},
    {"pandas.core.indexes.datetimes", "_new_DatetimeIndex"},
    {"pathlib", "PurePath"},
    {"random", "Random"},
    {"re", "_compile"},
    {"time", "struct_time"},
    {"torch", "Generator"},
    {"torch._C", "Generator"},
    {"torch.jit._pickle", "build_boollist"},
    {"torch.jit._pickle", "build_doublelist"},
    {"torch.jit._pickle", "build_intlist"},
    {"torch.jit._pickle", "build_tensor_from_id"},
    {"torch.jit._pickle", "build_tensorlist"},
    {"torch.jit._pickle", "restore_type_tag"},
    {"torch.torch_version", "TorchVersion"},
    {"types", "SimpleNamespace"},
    {"uuid", "SafeUUID"},
    {"uuid", "UUID"},
    {"zoneinfo", "ZoneInfo"},
    {"zoneinfo", "ZoneInfo._unpickle"},
};

struct CallerOfArgument {
  GlobalName name;
  std::size_t position;  // of what it calls
};
constexpr CallerOfArgument kCallersOfArguments[] = {
    {{"numpy.random", "__RandomState_ctor"}, 1},
    {{"numpy.random._pickle", "__bit_generator_ctor"}, 0},
    {{"numpy.random._pickle", "__generator_ctor"}, 1},
    {{"numpy.random._pickle", "__randomstate_ctor"}, 1},
    {{"torch._tensor", "_rebuild_from_type"}, 0},
    {{"torch._tensor", "_rebuild_from_type_v2"}, 0},
};

template <class Table>
bool has(const Table& table, std::string_view module, std::string_view name) {
  return std::ranges::find(table, GlobalName{module, name}) != std::end(table);
}

bool is_or_is_below(std::string_view module, std::string_view parent) {
  return module.starts_with(parent) &&
         (module.size() == parent.size() || module[parent.size()] == '.');
}

}  // namespace

bool is_standard_module(std::string_view module) {
  const std::string_view top = module.substr(0, module.find('.'));
  if (top.empty() || top.find(' ') != std::string_view::npos) return false;
  for (std::size_t at = kStandardModules.find(top); at != std::string_view::npos;
       at = kStandardModules.find(top, at + 1)) {
    if (kStandardModules[at - 1] == ' ' && kStandardModules[at + top.size()] == ' ') return true;
  }
  return false;
}

bool is_harmless_call(std::string_view module, std::string_view name) {
  if (has(kHarmlessNames, module, name)) return true;
  if (module == "torch._utils" && name.starts_with("_rebuild_")) return true;
  if (module == "torch.return_types") return true;
  // What Cython makes to pickle its classes: it calls __new__ of the class that it is given.
  return name.starts_with("__pyx_unpickle_") && !is_standard_module(module);
}

bool is_dangerous_anyhow(std::string_view module, std::string_view name) {
  if (is_harmless_call(module, name)) return false;
  // Other names of this module run programs to find out an address.
  if (is_or_is_below(module, "uuid")) return true;
  // The inside of modules and classes: from there everything can be reached.
  if (name.starts_with("__")) return true;
  return has(kDangerousNames, module, name) ||
         std::ranges::any_of(kDangerousModules, [&](std::string_view dangerous) {
           return is_or_is_below(module, dangerous);
         });
}

std::optional<std::size_t> called_argument(std::string_view module, std::string_view name) {
  for (const CallerOfArgument& caller : kCallersOfArguments)
    if (caller.name == GlobalName{module, name}) return caller.position;
  return std::nullopt;
}

std::span<const std::string_view> dangerous_modules() { return kDangerousModules; }
std::span<const GlobalName> dangerous_names() { return kDangerousNames; }
std::span<const GlobalName> harmless_names() { return kHarmlessNames; }

}  // namespace tessera
