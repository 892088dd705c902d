"""Members of consumer groups that follow their protocol, against a core whose log is a list, in virtual time."""
