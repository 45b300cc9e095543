"""The queues of work that stand beside topics: pynotify's own first."""
