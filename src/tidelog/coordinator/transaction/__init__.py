"""The transaction coordinator (KIP-98, KIP-890): pure decisions about the transactions of one partition."""
