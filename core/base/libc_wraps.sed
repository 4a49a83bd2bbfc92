# From libc_calls.def to the linker's options.
s/^LIBC_CALL([^,]*, \([a-z0-9_]*\),.*/-Wl,--wrap=\1/p
