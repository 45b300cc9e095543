"""What is measured, a module each; each imports what it measures only when it runs."""
