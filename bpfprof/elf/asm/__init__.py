"""x86-64 machine code: instruction lengths and effects, and the unwind rules that follow from them."""
