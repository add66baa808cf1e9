"""How pages are written: their figures, their tables, and a page of sections as text and as HTML."""
