"""Where a user's own filters, rewards, advantages and losses plug in; the shipped filters are
written the same way.
"""
