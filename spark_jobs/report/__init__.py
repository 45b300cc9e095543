"""The HTML page that ``report`` writes."""
