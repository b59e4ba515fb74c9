"""Models for other programs, and from them.

Each module is one program's form; where it can be written, its `export_checkpoint(directory, out)`
writes it, or raises ConfigError in a line and writes nothing. What a form needs beyond safetensors
is an extra, imported there alone.
"""
