tranche_test(data_text_test data)
