# The shipped rules are files under share/rules, and text inside the library: commands need no file
# to find. Re-run when one changes.
file(GLOB rule_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/share/rules/*.json)
set(rule_table "")
foreach(file ${rule_files})
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} text)
  string(APPEND rule_table "    {\"${name}\", R\"rules(${text})rules\"},\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
endforeach()
set(rule_source ${PROJECT_BINARY_DIR}/generated/builtin_rules.cc)
file(CONFIGURE OUTPUT ${rule_source} @ONLY CONTENT
"#include <tessera/ops/rules.h>

#include <array>

namespace tessera {

std::span<const BuiltinRules> builtin_rules() {
  static constexpr auto kRules = std::to_array<BuiltinRules>({
@rule_table@  });
  return kRules;
}

}  // namespace tessera
")
target_sources(tessera_core PRIVATE ${rule_source})
