"""What the audit counts: sent against received, in constant memory."""
