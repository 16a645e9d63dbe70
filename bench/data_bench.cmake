add_executable(data_bench ${CMAKE_CURRENT_LIST_DIR}/data_bench.cc)
target_link_libraries(data_bench PRIVATE tranche_data benchmark::benchmark tranche_flags)
