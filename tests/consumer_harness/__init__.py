"""Members of consumer groups that follow their protocol, with a coordinator core whose log is a list, in virtual
time.
"""
