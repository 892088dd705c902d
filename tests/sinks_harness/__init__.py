"""What the tests of sinks and sources share."""
