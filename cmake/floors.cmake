# One target per floor of the house. A floor is a static library that sees the headers of the floors it is linked to and
# of no other: each floor has an include root of its own, holding one link to its folder, so `#include "zero/engine.h"`
# inside model/ does not compile.

add_library(tranche_flags INTERFACE)
target_compile_options(tranche_flags INTERFACE -Wall -Wextra -Werror -Wno-missing-field-initializers
                                                 -Wno-restrict)  # false positives of GCC 12 in std::string
if(TRANCHE_SANITIZE)
  target_compile_options(tranche_flags INTERFACE -fsanitize=${TRANCHE_SANITIZE} -fno-sanitize-recover=all
                                                 -fno-omit-frame-pointer)
  target_link_options(tranche_flags INTERFACE -fsanitize=${TRANCHE_SANITIZE})
endif()

# tranche_floor(NAME SOURCES file... BELOW floor... LIBS target...)
#   BELOW: floors whose headers NAME may include; LIBS: outside libraries, visible to the floors above as well.
function(tranche_floor name)
  cmake_parse_arguments(F "" "" "SOURCES;BELOW;LIBS" ${ARGN})
  set(root ${CMAKE_BINARY_DIR}/floors/${name})
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${root}/${name} SYMBOLIC)
  list(TRANSFORM F_BELOW PREPEND tranche_)
  add_library(tranche_${name} STATIC ${F_SOURCES})
  target_include_directories(tranche_${name} PUBLIC ${root})
  target_link_libraries(tranche_${name} PUBLIC ${F_BELOW} ${F_LIBS} PRIVATE tranche_flags)
endfunction()

# tranche_vector_code(FLOOR): its Highway code is compiled for the instruction sets that the house chooses among at run time.
# Under the sanitizers, which take minutes to compile each, AVX-512 is left out.
function(tranche_vector_code name)
  set(left_out HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL)
  if(TRANCHE_SANITIZE)
    string(APPEND left_out |HWY_AVX3)
  endif()
  target_compile_definitions(tranche_${name} PRIVATE HWY_DISABLED_TARGETS=\(${left_out}\))
endfunction()
