# Run with -P: writes OUT, a C++ file that defines `FUNCTION` (qualified; declared in HEADER, returning
# std::vector<std::string_view>) to give the bytes of FILES, a list.
set(arrays "")
set(names "")
set(index 0)
foreach(file ${FILES})
  file(READ "${file}" hex HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" lines "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${lines}")
  string(APPEND arrays "const unsigned char kFile${index}[] = {\n${bytes}\n};\n")
  list(APPEND names "{reinterpret_cast<const char*>(kFile${index}), sizeof(kFile${index})}")
  math(EXPR index "${index} + 1")
endforeach()
list(JOIN names ",\n          " names)
file(WRITE "${OUT}" "// Generated.
#include \"${HEADER}\"

namespace {
${arrays}}  // namespace

std::vector<std::string_view> ${FUNCTION}() {
  return {${names}};
}
")
