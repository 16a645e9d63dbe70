tranche_test(attention_test tensor)
