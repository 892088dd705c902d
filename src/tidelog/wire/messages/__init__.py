"""Generated: one module per API, and one per kind of record. Import the module that is needed."""
