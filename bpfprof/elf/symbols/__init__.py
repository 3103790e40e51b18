"""Functions of an ELF file by address: symbol tables, PLT stubs, separate debug files."""
