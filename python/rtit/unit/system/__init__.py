"""What lies below an operating system, and what it saves
(33.2.9.3 to 33.2.9.6, 33.3.1.2, 33.3.5.2, 33.5, 33.6).
"""
