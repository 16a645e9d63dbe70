tranche_test(pipeline_test base)
add_dependencies(pipeline_test tranche)
