tranche_test(data_text_test data)
tranche_test(data_format_test data)
tranche_test(data_tokenize_test data)
