tranche_test(train_parts_test trainer)
tranche_test(train_rates_test trainer)
# These run the program itself.
tranche_program_test(train_resume_test trainer)
tranche_program_test(train_directory_test trainer)
tranche_program_test(train_run_test trainer)
tranche_program_test(train_save_test trainer)
tranche_program_test(train_leave_test trainer)
