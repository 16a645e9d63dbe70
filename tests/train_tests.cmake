tranche_test(train_parts_test trainer)
# These run the program itself.
tranche_test(train_resume_test trainer)
tranche_test(train_run_test trainer)
add_dependencies(train_resume_test tranche)
add_dependencies(train_run_test tranche)
