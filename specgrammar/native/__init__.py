"""Grammar work in native code: without the interpreter between nodes, and without its lock.

`library` finds what was compiled, `pool` keeps threads for it. What calls it: `grammar.native_walk` and
`grammar.native_follow`.
"""
