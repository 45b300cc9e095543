"""The competitors, a module each; each imports what it measures only when it runs."""
