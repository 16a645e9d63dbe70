tranche_test(tensor_matmul_test tensor)
tranche_test(tensor_ops_test tensor)
tranche_test(tensor_stream_test tensor)
tranche_test(tensor_plan_clock_test tensor base)
