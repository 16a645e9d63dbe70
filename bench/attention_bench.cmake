add_executable(attention_bench ${CMAKE_CURRENT_LIST_DIR}/attention_bench.cc
                               ${CMAKE_CURRENT_LIST_DIR}/tensor_peak.cc)
target_include_directories(attention_bench PRIVATE ${CMAKE_CURRENT_LIST_DIR})
target_link_libraries(attention_bench PRIVATE tranche_tensor benchmark::benchmark tranche_flags)
target_compile_definitions(attention_bench PRIVATE
                           HWY_DISABLED_TARGETS=\(HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL\))
