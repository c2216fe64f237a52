# smartgen_library(NAME [DEPS ...] [PRIVATE_DEPS ...]): one static library of all .cc files of this folder (and of the
# SUBDIRS named), called smartgen_NAME. Source lists are globbed so that adding a file is one step.
function(smartgen_library name)
  cmake_parse_arguments(ARG "" "" "DEPS;PRIVATE_DEPS;SUBDIRS" ${ARGN})
  set(patterns "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  foreach(sub ${ARG_SUBDIRS})
    list(APPEND patterns "${CMAKE_CURRENT_SOURCE_DIR}/${sub}/*.cc")
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  if(sources)
    add_library(smartgen_${name} STATIC ${sources})
    target_include_directories(smartgen_${name} PUBLIC "${PROJECT_SOURCE_DIR}")
    target_link_libraries(smartgen_${name} PUBLIC ${ARG_DEPS})
    target_link_libraries(smartgen_${name} PRIVATE ${ARG_PRIVATE_DEPS})
  else()
    add_library(smartgen_${name} INTERFACE)
    target_include_directories(smartgen_${name} INTERFACE "${PROJECT_SOURCE_DIR}")
    target_link_libraries(smartgen_${name} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

# smartgen_test(FOLDER [DEPS ...] [LABELS ...] [TIMEOUT seconds] [SANITIZE address|thread ...]): one test
# binary of all *_test.cc files in tests/FOLDER, named after the folder (common/kv -> common_kv_test), every
# TEST registered with ctest. SANITIZE names the sanitizer builds that run it in CI: `thread` for what is
# concurrent, `address` for what parses outside input or juggles memory. There its label is `sanitize` and it
# belongs to the target `sanitized_tests`.
function(smartgen_test folder)
  cmake_parse_arguments(ARG "" "TIMEOUT" "DEPS;LABELS;SANITIZE" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS quick)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*_test.cc")
  if(NOT sources)
    return()
  endif()
  string(REPLACE "/" "_" target "${folder}_test")
  add_executable(${target} ${sources})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_definitions(${target} PRIVATE
    SMARTGEN_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/golden")
  # What is measured is the libraries; tests compile in half the time this way.
  target_compile_options(${target} PRIVATE -O1)
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  foreach(sanitizer ${ARG_SANITIZE})
    if(SMARTGEN_SANITIZE MATCHES "${sanitizer}")
      # In the place of the others: gtest_discover_tests passes no list of labels on.
      set(ARG_LABELS sanitize)
      add_dependencies(sanitized_tests ${target})
      math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")
    endif()
  endforeach()
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST TEST_PREFIX "${folder}/"
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()
