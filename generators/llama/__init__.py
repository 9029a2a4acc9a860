"""Language models of the Llama family on paged memory."""
