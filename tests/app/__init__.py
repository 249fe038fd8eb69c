"""An app of a project that uses the queue: its tasks run in the tests and in real workers."""
