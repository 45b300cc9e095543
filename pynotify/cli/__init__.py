"""The command line.  `import pynotify` needs nothing of it, and it needs nothing but pynotify.

A module for each command, with `add_arguments(parser)` and `run(options)`, which returns the exit
status; `main` chooses among them and says what went wrong.
"""
