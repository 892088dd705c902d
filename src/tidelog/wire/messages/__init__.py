"""Generated: one module for each API and for each kind of record. Import only the modules you use."""
