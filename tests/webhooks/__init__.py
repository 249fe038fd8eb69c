"""A receiver of webhooks in this process, and a name server that lies."""
