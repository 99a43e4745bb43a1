"""What all papers have in common: parts and sizes, records, claims, the page of results."""
