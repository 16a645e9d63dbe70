tranche_test(transport_test zero tensor base)
tranche_test(transport_failure_test zero tensor base)
tranche_test(zero_engine_test trainer)
tranche_program_test(zero_run_test data)
