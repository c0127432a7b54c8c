"""Grammar work in native code: without the interpreter between nodes, and without its lock.

`library` finds what was compiled, `walk` calls the walk over draft trees, `pool` keeps threads for it.
"""
