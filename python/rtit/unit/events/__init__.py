"""What a program and its operating system do (sections 33.2.1 to 33.2.4, 33.2.9.1, 33.4.1.1)."""
