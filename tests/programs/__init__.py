"""Small programs that tests record; each shows one situation."""
