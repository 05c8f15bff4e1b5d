# FTXUI, which draws `ckpt-inspect browse`: the parts of the release that are used (third_party/ftxui-*), built here in every
# build, as no Debian package of bookworm has it.
set(ftxui_root ${PROJECT_SOURCE_DIR}/third_party/ftxui-7.0.1)
file(GLOB_RECURSE ftxui_sources CONFIGURE_DEPENDS ${ftxui_root}/src/*.cpp)
add_library(tessera_ftxui STATIC ${ftxui_sources})
tessera_unity_build(tessera_ftxui ${ftxui_sources})
target_include_directories(tessera_ftxui SYSTEM PUBLIC ${ftxui_root}/include PRIVATE ${ftxui_root}/src)
target_compile_options(tessera_ftxui PRIVATE -w ${TESSERA_ONCE_PER_TENSOR})
