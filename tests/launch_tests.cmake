tranche_test(launch_rank_test launch)
tranche_test(launch_store_test launch)
# A rank, and a launcher of ranks, without training.
add_executable(launch_test_program launch_test_program.cc)
target_link_libraries(launch_test_program PRIVATE tranche_launch tranche_flags)
tranche_test(launch_local_test launch)
add_dependencies(launch_local_test launch_test_program)
tranche_program_test(launch_verb_test trainer)
