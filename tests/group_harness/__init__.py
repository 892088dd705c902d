"""Group coordinators on virtual time with logs in memory: shared by the tests that need more than a pure core."""
