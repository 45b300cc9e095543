"""What stands in the place of other libraries' clients; each module needs the extra of its name."""
