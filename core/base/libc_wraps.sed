# From libc_calls.def and libc_uncancelled.def to the linker's options.
s/^\(LIBC_CALL\|UNCANCELLED\)([^,]*, \([a-z0-9_]*\),.*/-Wl,--wrap=\2/p
