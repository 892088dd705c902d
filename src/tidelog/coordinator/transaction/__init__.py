"""Pure decisions of the transaction coordinator (KIP-98, KIP-890) of one partition of `__transaction_state`."""
