"""Publishers and relays in processes of their own, and what a destination received."""
