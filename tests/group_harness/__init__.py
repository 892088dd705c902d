"""Group coordinators on virtual time with logs in memory, for tests that need more than a core without I/O."""
