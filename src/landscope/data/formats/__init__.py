"""Readers of canonical file formats: bytes in, arrays out, anything odd refused with the file's name."""
