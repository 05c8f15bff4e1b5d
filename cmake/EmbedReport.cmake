# The pages of `ckpt-inspect report` and `audit --html` are files under share/report and third_party/d3, and text inside the commands.
set(report_files page share/report/page.html style share/report/report.css shell share/report/shell.js
  report share/report/report.js library third_party/d3-7.9.2/d3.min.js audit share/report/audit.js)
set(report_texts "")
set(report_fields "")
while(report_files)
  list(POP_FRONT report_files name file)
  file(READ ${PROJECT_SOURCE_DIR}/${file} text)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${file})
  string(APPEND report_texts "constexpr char k_${name}[] = R\"asset(${text})asset\";\n")
  string(APPEND report_fields "{k_${name}, sizeof k_${name} - 1}, ")
endwhile()
set(report_source ${PROJECT_BINARY_DIR}/generated/report_assets.cc)
file(CONFIGURE OUTPUT ${report_source} @ONLY CONTENT
"#include \"tools/report/report.h\"

// The compilers that this is for take longer texts than the standard asks them to.
#pragma GCC diagnostic ignored \"-Woverlength-strings\"

namespace tessera::tools {
namespace {
@report_texts@}  // namespace

const ReportAssets& report_assets() {
  static constexpr ReportAssets kAssets{@report_fields@};
  return kAssets;
}

}  // namespace tessera::tools
")
target_sources(tessera_tools PRIVATE ${report_source})
