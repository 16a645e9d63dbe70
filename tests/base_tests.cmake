tranche_test(base_test base)
