"""Paper 3: flatness is a false friend."""
