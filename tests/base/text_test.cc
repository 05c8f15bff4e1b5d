#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>

namespace text_test {

using namespace tessera;

TEST_CASE("sizes read as coreutils reads them") {
  CHECK(parse_size("0") == 0);
  CHECK(parse_size("512") == 512);
  CHECK(parse_size("512B") == 512);
  CHECK(parse_size("5K") == 5120);
  CHECK(parse_size("5k") == 5120);
  CHECK(parse_size("5KiB") == 5120);
  CHECK(parse_size("5KB") == 5000);
  CHECK(parse_size("5kB") == 5000);
  CHECK(parse_size("64MiB") == 64ull << 20);
  CHECK(parse_size("5GB") == 5'000'000'000);
  CHECK(parse_size("5G") == 5ull << 30);
  CHECK(parse_size("5GiB") == 5ull << 30);
  CHECK(parse_size("3T") == 3ull << 40);
  CHECK(parse_size("3PB") == 3'000'000'000'000'000);
  CHECK(parse_size("15E") == 15ull << 60);
  CHECK(parse_size("18446744073709551615") == ~0ull);
}

TEST_CASE("what is no size is refused") {
  for (const char* text : {"", "G", "5X", "5 G", "-1", "+5", "1.5G", "5Gi", "5GiBs", "5bytes",
                           "0x10", "16E", "18446744073709551616", "99999999999999999999999"}) {
    INFO(text);
    try {
      parse_size(text);
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.code() == Code::kInvalidArgument);
    }
  }
}

TEST_CASE("bytes print with at most four significant characters") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1024) == "1.0 KiB");
  CHECK(format_bytes(1536) == "1.5 KiB");
  CHECK(format_bytes(100 * 1024) == "100 KiB");
  CHECK(format_bytes((1ull << 20) - 1) == "1.0 MiB");
  CHECK(format_bytes(5'000'000'000) == "4.7 GiB");
  CHECK(format_bytes(~0ull) == "16.0 EiB");
}

TEST_CASE("no name can drive a terminal") {
  CHECK(printable("layer.0") == "layer.0");
  CHECK(printable("größe λ 重み 🙂") == "größe λ 重み 🙂");
  CHECK(printable("a\nb\tc") == "a\\nb\\tc");
  CHECK(printable("\x1b[31m") == "\\x1b[31m");
  CHECK(printable("a\u202Eb\u2066\u2028") == "a\\u202eb\\u2066\\u2028");
  CHECK(printable(std::string_view("a\0b", 3)) == "a\\x00b");
  CHECK(printable("\x7f") == "\\x7f");
  CHECK(printable("\xc2\x9b") == "\\xc2\\x9b");  // C1: CSI
  CHECK(printable("\xff\xfe") == "\\xff\\xfe");
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // a lone surrogate
  CHECK(printable("\xc3") == "\\xc3");
  // What takes no room: two names that look alike do not print alike.
  CHECK(printable("a\u200Bb\uFEFF\u2060\u00AD") == "a\\u200bb\\ufeff\\u2060\\u00ad");
  CHECK(printable("\xf3\xa0\x80\xa1") == "\\ue0021");
  CHECK(printable("caf\u00e9 \u4e2d") == "caf\u00e9 \u4e2d");
}

TEST_CASE("UTF-8 is checked to the letter") {
  for (const char* good : {"", "abc", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                           "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    INFO(printable(good));
    CHECK(is_valid_utf8(good));
  }
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2\x41", "\xe0\x9f\xbf", "\xed\xa0\x80",
        "\xe2\x82", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    INFO(printable(bad));
    CHECK_FALSE(is_valid_utf8(bad));
  }
}

TEST_CASE("digits compare as numbers") {
  std::vector<std::string> names = {"layers.10.w",
                                    "layers.2.w",
                                    "layers.1.w",
                                    "layers.02.w",
                                    "a",
                                    "",
                                    "layers.2.b",
                                    "layers.2",
                                    "layers.10",
                                    "b99999999999999999999999",
                                    "b100000000000000000000000"};
  std::ranges::sort(names, natural_less);
  CHECK(names == std::vector<std::string>{"", "a", "b99999999999999999999999",
                                          "b100000000000000000000000", "layers.1.w", "layers.2",
                                          "layers.2.b", "layers.02.w", "layers.2.w", "layers.10",
                                          "layers.10.w"});
}

TEST_CASE("natural order is a strict weak order") {
  const std::vector<std::string> names = {"",    "0",    "00", "1",   "01",  "a",  "a0", "a00",
                                          "a0b", "a00b", "a1", "a01", "a10", "a9", "0a", "\xff"};
  for (const auto& a : names) {
    CHECK_FALSE(natural_less(a, a));
    for (const auto& b : names) {
      INFO('"' << a << "\" and \"" << b << '"');
      if (a != b) CHECK(natural_less(a, b) != natural_less(b, a));
      for (const auto& c : names)
        if (natural_less(a, b) && natural_less(b, c)) CHECK(natural_less(a, c));
    }
  }
}

TEST_CASE("the nearest word is offered only when it is near") {
  const std::array<std::string_view, 4> words = {"summary", "show", "stat", "verify"};
  CHECK(nearest("sumary", words) == "summary");
  CHECK(nearest("verfiy", words) == "verify");
  CHECK(nearest("stats", words) == "stat");
  CHECK(nearest("convert", words).empty());
  CHECK(nearest("x", words).empty());
  CHECK(nearest("", words).empty());
}

TEST_CASE("splitting keeps empty parts") {
  CHECK(split("", ',') == std::vector<std::string_view>{""});
  CHECK(split("a,,b,", ',') == std::vector<std::string_view>{"a", "", "b", ""});
}

TEST_CASE("bytes print as hex") {
  CHECK(to_hex(std::array<std::uint8_t, 3>{0x00, 0x9f, 0xff}) == "009fff");
}

}  // namespace text_test
