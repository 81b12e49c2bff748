"""How fast and how large the course is, beside its goals: ``python3 course.py bench``."""
